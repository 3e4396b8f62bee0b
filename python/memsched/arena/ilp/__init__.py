"""Integer programs solved by HiGHS: OLLA's (Steiner et al., 2022) for the order of the ops, the addresses, and both
at once, and Checkmate's (Jain et al., 2020) for recomputation.

They are exact on small graphs. Needs highspy: `pip install memsched[ilp]`.
"""

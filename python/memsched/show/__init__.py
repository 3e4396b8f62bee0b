"""Views of a plan: pictures, traces, reports."""

"""One arena: the order of the ops and the addresses of the buffers."""

"""One arena: the order of operations and the addresses of buffers."""

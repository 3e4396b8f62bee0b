"""The planners, one file a family; `registry` lists them."""

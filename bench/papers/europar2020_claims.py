def report(*a): return "todo\n"

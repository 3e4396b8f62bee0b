"""What shows a plan: pictures, traces, reports."""

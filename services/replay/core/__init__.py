"""Pure: a day as data, the rules that make one from traces, the baseline policies, the outcome."""

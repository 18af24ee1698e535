"""Who used which GPUs for what, from the log: GPU-hours held, effective, idle and lost, per job, user, team and kind.

Reading order: `ledger` (records → intervals; any order, any duplicates, the same result), `served` (what applications say they
did with it), `account` (intervals → rows),
`report` (rows → groups), `report_output` (table, CSV, Parquet, HTML), `load_report` (the topics it reads).
Everything but the last is pure.
"""

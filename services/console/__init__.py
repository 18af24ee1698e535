"""The people's side: the `gpugrid` command. Reads the topics (newest state first, then the log) and publishes job events.

Inputs: every topic, the run folder's span files, the stack file. Outputs: `job-events` and `commands`, text and JSON.
Invariants: reading changes nothing and joins no group; every sentence and table is made by a pure function from events;
what a person sees, a program gets with `--json`. Refuses: deciding anything, and keeping any state of its own.

Reading order: `app` (all commands on one page), `session` (which broker, which clock), `read` (topics to their end),
`facts` (records → what is known of jobs and nodes), then the pure makers of answers: `sentences`, `shape`, `tables`,
`gridview`, `waterfall`. `cli_*` hold the commands' signatures and import everything else only when a command runs, so
that `--help` stays quick.
"""

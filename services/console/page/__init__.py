"""The page people keep open: `gpugrid page` serves one port with everything that is known of the stack, live.

Inputs: the topics (read like every console command, in no group), span files, the stack's clock. Outputs: HTTP on one port:
a snapshot and a stream of deltas (`/api/snapshot`, `/api/stream`), answers about one job, reports, and, with a login
token, the orders a person may give (published like those of the command line). Invariants: the page is a view, it owns no
truth; every row is made by a pure function from folded events; nobody without the token changes anything; a slow or
lost browser costs bounded memory and gets a whole snapshot again. Refuses: deciding, and assets from anywhere else.

Reading order: `board` (records → what is known, with what changed), its parts `blocks` and `demand`, `rows` (known → JSON),
`shadow` (value and utilization beside FIFO's), `planned` (the plan ahead), `hub` (versions and deltas), `follower` (bus →
board), `access` (token), `server` and `orders_http` (HTTP). `static/` is the browser's part: plain ES modules.
"""

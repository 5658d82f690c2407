"""How bytes travel: connections to the nodes, for threads and for asyncio. hiredis parses the replies.

connection   one connection without I/O: handshake, pipelining, replies
address      where a node is: TLS, sockets, redirects
link         the link to one node: connected, or down until the next try
push_router  gives messages and invalidations to their listeners
wakeup       wakes a waiting thread
faults       turns errors of servers and sockets into readable faults
clock        the clocks and the randomness of a real machine
threads*     `core.io.IO` on blocking sockets, with `sockets` and `spinning`
aio*         `core.io.IO` on asyncio, with `reply_future` and `timeouts`
cluster_*    both for Redis Cluster: they route by slot and follow redirects; `forwarded` is a reply from another node
"""

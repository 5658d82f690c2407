"""How bytes travel: connections to the nodes on hiredis' parser, for threads and for asyncio.

connection   one connection without I/O: handshake, pipelining, replies
address      where a node is: TLS, sockets, redirects
link         the link to one node: connected, or down until the next try
push_router  messages and invalidations to their listeners
wakeup       wakes a waiting thread
faults       what a server's error means, in words
clock        the clocks and the randomness of a real machine
threads*     the interface of the core on blocking sockets, and `sockets`
aio*         the interface of the core on asyncio, with `reply_future` and `timeouts`
cluster_*    both for Redis Cluster: routes by slot, follows redirects; `forwarded` is a reply that another node sends
"""

"""The algorithms, with no I/O, clock or randomness of their own.

They are `async def` functions over an `IO` object (io.py), which a driver implements: blocking sockets, an asyncio
loop, or the simulator. With the blocking driver no await ever suspends, so an algorithm runs straight through.

  io           the interface to a driver                      acquire      start reading here
  config       settings, timing and keys of a lock            attempt      one broadcast, and a hold if it succeeds
  nodes        the nodes of one client, and their state       local_queue  waiters of this process, in order of arrival
  hold         the state machine of one acquisition           queue        waiting in the queues of the nodes
  votes        vote counting                                  several      several names at once
  tokens       agreement on a token                           foreign      waiting for other programs' keys
  guard        restart guard: which nodes may vote            release      every release there is
  clocks       steps of the nodes' clocks                     handshake    the first commands of a connection
  renew        renewing and healing many holds at once        explain      errors for acquisitions that failed
  schedule     when renewals are due                          inspect      the holder and the waiters of a lock
  eviction     servers that may evict locks
"""

"""The algorithms, with no I/O, clock or randomness of their own.

They are `async def` functions over an `Effects` object (effects.py), which a driver implements: blocking sockets or an
asyncio loop here, a simulation where one is wanted. With the blocking driver no await ever suspends, so the same code
runs straight through.

  effects    the seam: what the algorithms ask of a driver    group      the nodes of one client, what is known of each
  resp       commands as bytes                                terms      a ttl and all that follows from it
  commands   which bytes each node gets                       quorum     pure vote counting
  handshake  what a new connection says first                 guard      restart guard: who may vote
  hold       the state of one acquisition                     fencing    agreement on a token
  mutex      acquire, extend, release                         renewal    renew and heal many holds at once
  line       who waits in this process, in which order        lineup     from the end of a line to the lock
  waiting    at the head of a line: wake-ups by the servers   fair       at the head of a line: a queue on the server
  census     who holds a lock, and who waits for it
"""

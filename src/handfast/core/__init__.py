"""The algorithms, with no I/O, clock or randomness of their own.

They are `async def` functions over an `Effects` object (effects.py). Three drivers implement it: blocking sockets, an
asyncio loop, a simulator. With the blocking driver no await ever suspends, so the same code runs straight through.

  resp       commands as bytes                      effects    the seam: what the algorithms ask of a driver
  quorum     pure vote counting                     group      the nodes of one client and what is known of each
  commands   which bytes each node gets             handshake  what a new connection says first
  guard      restart guard: who may vote            hold       the state of one acquisition
  fencing    agreement on a token                   mutex      acquire, extend, release
  renewal    renew and heal many holds at once
"""

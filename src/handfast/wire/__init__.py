"""The data plane: RESP3 connections on hiredis' parser.

faults    what a server's error means, in words       channel   one connection without I/O: handshake, pipelining, replies
dial      addresses, TLS, sockets                     blocking  a lane of sockets, written to at once and then polled
aio       a lane of multiplexed asyncio connections
"""

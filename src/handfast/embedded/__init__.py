"""The Valkey servers that come along: what is behind `embedded://`.

deployment   starts and finds the servers of one folder
supervisor   a process that owns them; it runs `node`, `process`, `layout` and `resp` without the rest of handfast
layout       the files in the folder
node         one node as its supervisor sees it
process      a server process
resp         a small client for the supervisor
binaries     where the server's program is
"""

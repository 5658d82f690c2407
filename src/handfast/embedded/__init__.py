"""The servers behind `embedded://`: Valkey servers that handfast starts on demand.

deployment   starts and finds the servers of one folder
supervisor   the process that owns them; it runs `node`, `process`, `layout` and `resp` without the rest of handfast
layout       the files in the folder
node         one node as its supervisor sees it
process      a server process
resp         a small client for the supervisor
binaries     finds the server's binary
"""

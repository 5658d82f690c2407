"""Finds the addresses of the nodes, from the URLs or clients that the user has given.

urls         URLs and their options
endpoints    all servers of one client: URLs, the environment, embedded servers, redis-py clients
sentinel     the master that Sentinel names; sentinel_question has the words, login the login
cluster      the slot map of a cluster
asking       timeouts of the redis-py connections that read a slot map
redis_options  logins and TLS, from the options of redis-py clients
connections  the open connections to servers that may move
"""

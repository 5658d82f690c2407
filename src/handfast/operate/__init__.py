"""What operators want to know and do: who holds what, whether the servers are fit for it, and how to break a lock.

servers    connections to all servers of a deployment, for reading and not for votes
locks      which locks are held, one lock in detail, its waiters
breaking   take a lock away from its holder, with an audit line
doctor     whether the servers of a deployment can be trusted with locks; `node_checks` has the checks of one server

Results are plain data classes. Nothing here prints, and nothing here needs more than the base install.
"""

"""What performs the core's effects for real: with blocking sockets (threads) and on an asyncio loop (aio)."""

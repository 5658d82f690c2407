/*
 * The wait queue on a quorum: claim, pass, inquire and yield, with stamps and tickets.
 *
 * NODES nodes have one vote each. CLIENTS clients want the lock once each. Owners are new for every acquisition, so a
 * client of this model is one acquisition. README.md says what is modelled and how to read a counterexample. check.py
 * chooses the options below and runs the verifier.
 *
 * Size
 *   NODES, CLIENTS   1 or 3 nodes, 1 to 3 clients
 *   TRYERS           set of the clients (as bits) whose first attempt has no ticket; the others come with a ticket
 *   ARRIVAL          the ticket is the time of arrival on the node: the queue of a single node
 *
 * Variants of the rules
 *   TRY_QUEUES       a node queues a first attempt without a ticket behind all tickets; otherwise it only refuses it
 *   SKIPPING_DROPS_THE_CLAIM   a node that skips a waiter forgets its claim; otherwise it keeps it
 *   ANY_COMMAND_GIVES          a free vote goes to the next waiter with any command, not only with a claim
 *   PUSH_APART       pushes have a connection of their own and are not in order with replies
 *   OWN_PUSH_FIRST   a push to the client that a node is answering comes before the reply, as on Redis 6.2 and 7.0
 *   STAMPS_START_ANEW          a node that restarts empty counts stamps from 1; otherwise they go on growing
 *   REMEMBER_INQUIRIES         a client remembers an inquiry that comes before its grant; otherwise it ignores it
 *
 * Faults
 *   FAULTS           how many faults may happen in one run, of these kinds:
 *   CANCELS          a waiter cancels
 *   REPEATS          a waiter repeats its claim for no reason, as after the timeout of a request
 *   CRASHES          a client crashes; what it leaves on the nodes expires
 *   EXPIRIES         a deadline passes on a live client, or its vote or claim expires on a node
 *   BREAKS           a connection breaks; what is in flight is lost
 *   STRAYS           a connection breaks; what is in flight to the node arrives later, also after newer messages
 *   RESTARTS         a node restarts empty and is quarantined
 *   ALL_FAULTS       all these kinds
 *   ONE_DOWN         the last node is down (until it restarts, if it may)
 *
 * Properties
 *   exclusion        assert(holders <= 1)
 *   no deadlock      no invalid end state: a client ends only when it has held the lock, has cancelled or has crashed
 *   no livelock      assert(stamp <= MOST_STAMPS), and no cycle of steps (check.py searches for one)
 *   order            assert(overtaken <= OVERTAKING), and first in, first out with ARRIVAL
 *
 * Each rule has a switch that leaves it out or replaces it with a wrong one. check.py lists the switches (MUTANTS).
 */

#ifndef NODES
#define NODES 3
#endif
#ifndef CLIENTS
#define CLIENTS 2
#endif
#ifndef TRYERS
#define TRYERS 0
#endif
#ifndef FAULTS
#define FAULTS 0
#endif
#ifdef ALL_FAULTS
#define CANCELS
#define REPEATS
#define CRASHES
#define EXPIRIES
#define BREAKS
#define STRAYS
#define RESTARTS
#endif
#if defined(EXPIRIES) || defined(RESTARTS)
#define DEADLINES		/* deadlines can pass */
#endif
#if defined(CRASHES) || defined(EXPIRIES) || defined(BREAKS) || defined(STRAYS) || defined(RESTARTS)
#define LOSSES			/* messages, claims or votes can be lost, so waiters look again */
#define LOST	true
#else
#define LOST	false
#endif
#ifndef ROOM
#define ROOM 5			/* messages in flight on one connection; one more is reported as an error */
#endif
#ifdef FEW_STAMPS
#define MOST_STAMPS (who + 1)	/* a client yields a vote at most once for every lower ticket */
#endif
#ifndef MOST_STAMPS
#define MOST_STAMPS 9		/* how often a node may give its vote to one owner */
#endif

#ifdef MINORITY_HOLDS
#define NEED		(NODES / 2)
#else
#define NEED		(NODES / 2 + 1)
#endif
#define LINKS		(NODES * CLIENTS)
#define L(c, n)		((c) * NODES + (n))
#define BIT(c)		(1 << (c))

/* From a client to a node. TRY is a claim without a ticket. YIELD carries a stamp. */
mtype = { TRY, CLAIM, PASS, YIELD };
/* From a node to a client. GRANTED is the reply `granted` and the push `yours`: the rules treat them alike. */
mtype = { GRANTED, REFUSED, INQUIRE };
/* The life of a client. */
mtype = { NEW, WAITING, HOLDING, GONE, CRASHED };
/* A connection. NOTICED: it is broken, and the node knows that nobody hears its pushes. */
mtype = { UP, BROKEN, NOTICED, DOWN };

chan to_node[LINKS] = [ROOM] of { mtype, byte };
chan to_client[LINKS] = [ROOM] of { mtype, byte };
#ifdef PUSH_APART
chan pushes[LINKS] = [ROOM] of { mtype, byte };
#endif
#ifdef STRAYS
chan stray[LINKS] = [ROOM] of { mtype, byte };
#endif
mtype link[LINKS] = UP;

/* Nodes. */
#define FREE		0
byte owner[NODES];		/* FREE, or the client that has the vote, plus one */
byte queue[NODES];		/* set of the clients whose claim waits */
byte ticketed[NODES];		/* set of the clients whose ticket the node knows */
byte stamp[LINKS];		/* the last stamp given to this owner; the rules compare only stamps of one owner and node */
#ifdef RESTARTS
bit quarantined[NODES];
#define QUARANTINED(n)	quarantined[n]
#else
#define QUARANTINED(n)	false
#endif

/* Clients. */
mtype state[CLIENTS] = NEW;
bit has_ticket[CLIENTS];
byte counted[LINKS];		/* stamp of the counted vote, or 0 */
byte yielded[LINKS];		/* the last stamp yielded */
#ifdef DEADLINES
bit late[LINKS];		/* the deadline of the counted vote has passed */
byte over[LINKS];		/* grants up to this stamp have expired on the node, so their deadlines have passed */
#define AHEAD(l)	(counted[l] != 0 && !late[l])
#else
#define AHEAD(l)	(counted[l] != 0)
#endif
#ifdef UNCOUNT_AFTER_SENDING
byte to_uncount[LINKS];		/* the stamp of the vote that was yielded and is still counted */
#endif
#ifdef REMEMBER_INQUIRIES
byte asked[LINKS];		/* the last stamp that was asked for before it was counted */
#endif

#if FAULTS > 0
byte faults = FAULTS;		/* how many may still happen in this run */
#endif

/* Tickets. By symmetry client 0 has the lowest, whenever it comes. A claim without a ticket is behind all others. */
#ifdef ARRIVAL
byte arrival[CLIENTS];
byte arrivals;
#define ORDER(c, n)	arrival[c]
#else
#define ORDER(c, n)	((ticketed[n] & BIT(c)) -> (c) : CLIENTS + (c))
#endif
#define BEFORE(a, b, n)	(ORDER(a, n) < ORDER(b, n))

/* Whether a lower ticket than that of c waits on node n. */
#define LOWER(a, c, n)	((queue[n] & BIT(a)) && BEFORE(a, c, n))
#if CLIENTS == 1
#define LOWER_WAITS(c, n)	false
#elif CLIENTS == 2
#define LOWER_WAITS(c, n)	(LOWER(0, c, n) || LOWER(1, c, n))
#else
#define LOWER_WAITS(c, n)	(LOWER(0, c, n) || LOWER(1, c, n) || LOWER(2, c, n))
#endif

#if NODES == 1
#define VOTES(c)	(AHEAD(L(c, 0)))
#else
#define VOTES(c)	(AHEAD(L(c, 0)) + AHEAD(L(c, 1)) + AHEAD(L(c, 2)))
#endif

/* Client rule 3. */
#ifdef LEASE_UNTIL_THE_LATEST_DEADLINE
#define HOLDS(c)	(state[c] == HOLDING && VOTES(c) >= 1)
#else
#define HOLDS(c)	(state[c] == HOLDING && VOTES(c) >= NEED)
#endif

#ifdef OVERTAKING
byte overtaken[CLIENTS];	/* how often a higher ticket won while every node knew the claim */
#define KNOWN_TO_ALL(c)	(ticketed[0] & ticketed[NODES / 2] & ticketed[NODES - 1] & BIT(c))
#endif

/* Scratch variables of one atomic step. Every step ends with tidy(), so they add no states. */
byte i, j, who, number, s;
mtype m;

inline tidy() { i = 0; j = 0; who = 0; number = 0; s = 0; m = 0 }

inline empty_out(channel) {
	do
	:: len(channel) > 0 -> channel ? m, s
	:: else -> break
	od
}

/* ------------------------------------------------------------------------------------------------------ messages */

/*
 * A message that changes nothing is not sent: any message to a client that is gone, a refusal for a client that has a
 * ticket, and what a holder ignores. A holder still counts votes when deadlines can pass.
 */
#ifdef HOLDER_YIELDS
#define HEARS(c, what)	(state[c] == WAITING || state[c] == HOLDING)
#else
#ifdef DEADLINES
#define HOLDER_HEARS(c, what)	(state[c] == HOLDING && what == GRANTED)
#else
#define HOLDER_HEARS(c, what)	false
#endif
#define HEARS(c, what)	((state[c] == WAITING && !(what == REFUSED && has_ticket[c])) || HOLDER_HEARS(c, what))
#endif

inline send_to_client(channel, c, n, what, with) {
	if
	:: HEARS(c, what) && link[L(c, n)] == UP -> channel ! what, with
	:: else
	fi
}

inline reply(c, n, what, with) { send_to_client(to_client[L(c, n)], c, n, what, with) }

#ifdef PUSH_APART
inline push(c, n, what, with) { send_to_client(pushes[L(c, n)], c, n, what, with) }
#else
inline push(c, n, what, with) { send_to_client(to_client[L(c, n)], c, n, what, with) }
#endif

/* While its connection is broken a client sends nothing: it repeats what matters when the connection is back. */
inline send_to_node(c, n, what, with) {
	if
	:: link[L(c, n)] == UP -> to_node[L(c, n)] ! what, with
	:: else
	fi
}

inline send_claim(c, n) {
	if
	:: has_ticket[c] -> send_to_node(c, n, CLAIM, 0)
	:: else -> send_to_node(c, n, TRY, 0)
	fi
}

/* --------------------------------------------------------------------------------------------------------- nodes */

/* Give the vote to the lowest live ticket, if there is one. `asking` is the client that this step answers, or CLIENTS. */
inline give(n, asking) {
	who = CLIENTS;
	for (j : 0 .. CLIENTS - 1) {
		if
		:: !(queue[n] & BIT(j))
#ifndef NO_SKIPPING
		:: (queue[n] & BIT(j)) && link[L(j, n)] == NOTICED ->	/* node rule 5 */
#ifdef SKIPPING_DROPS_THE_CLAIM
			queue[n] = queue[n] & ~BIT(j)
#else
			skip
#endif
#endif
		:: else ->
			if
			:: who == CLIENTS -> who = j
			:: who != CLIENTS && BEFORE(j, who, n) -> who = j
			:: else
			fi
		fi
	};
	give_to_one(n, asking)
}

/* A mutant: to the newest instead. */
inline give_to_the_newest(n) {
	who = CLIENTS;
	for (j : 0 .. CLIENTS - 1) {
		if
		:: (queue[n] & BIT(j)) && (who == CLIENTS || BEFORE(who, j, n)) -> who = j
		:: else
		fi
	};
	give_to_one(n, CLIENTS)
}

inline give_to_one(n, asking) {
	if
	:: who == CLIENTS -> owner[n] = FREE
	:: else ->
		owner[n] = who + 1;
		queue[n] = queue[n] & ~BIT(who);
		stamp[L(who, n)]++;
		assert(stamp[L(who, n)] <= MOST_STAMPS);	/* livelock */
		printf("    node %d gives its vote to client %d, stamp %d\n", n, who, stamp[L(who, n)]);
		if
		:: who == asking -> reply(who, n, GRANTED, stamp[L(who, n)])
		:: else -> push(who, n, GRANTED, stamp[L(who, n)])
		fi
	fi
}

inline inquire(n) {
#ifdef NO_INQUIRE
	skip
#else
	printf("    node %d inquires of client %d, stamp %d\n", n, owner[n] - 1, stamp[L(owner[n] - 1, n)]);
#ifdef ARRIVAL
	assert(LOST);					/* on one node nobody has to yield */
#endif
	push(owner[n] - 1, n, INQUIRE, stamp[L(owner[n] - 1, n)])
#endif
}

/* Node rules 1 and 2. */
inline on_claim(c, n) {
	if
	:: QUARANTINED(n) -> reply(c, n, REFUSED, 0)
	:: else ->
#ifdef INQUIRE_ONCE
		number = queue[n] & BIT(c);
#else
		number = 0;
#endif
#ifdef ARRIVAL
		if
		:: arrival[c] == 0 -> arrivals++; arrival[c] = arrivals
		:: else
		fi;
#endif
		if
		:: m == CLAIM -> ticketed[n] = ticketed[n] | BIT(c)
		:: else
		fi;
		if
		:: owner[n] == c + 1 ->
#ifndef OWN_PUSH_FIRST
			reply(c, n, GRANTED, stamp[L(c, n)]);
#endif
#ifndef NO_INQUIRE_OF_A_CLAIMANT
			if
			:: LOWER_WAITS(c, n) -> inquire(n)
			:: else
			fi;
#endif
#ifdef OWN_PUSH_FIRST
			reply(c, n, GRANTED, stamp[L(c, n)]);
#endif
			skip
		:: else ->
			queue[n] = queue[n] | BIT(c);
			if
			:: owner[n] == FREE -> give(n, c)
			:: else
			fi;
			if
			:: owner[n] == c + 1
			:: owner[n] != c + 1 && m == TRY ->
#ifndef TRY_QUEUES
				queue[n] = queue[n] & ~BIT(c);
#endif
				reply(c, n, REFUSED, 0)
			:: owner[n] != c + 1 && m == CLAIM && owner[n] != FREE && BEFORE(c, owner[n] - 1, n) && !number -> inquire(n)
			:: else
			fi
		fi
	fi
}

/* Node rule 3. */
inline on_pass(c, n) {
#ifndef PASS_KEEPS_THE_CLAIM
	queue[n] = queue[n] & ~BIT(c);
	ticketed[n] = ticketed[n] & ~BIT(c);
#ifndef STRAYS
	stamp[L(c, n)] = 0;		/* nothing compares it any more */
#endif
#endif
	if
	:: owner[n] == c + 1 ->
#ifdef PASS_KEEPS_THE_CLAIM
		queue[n] = queue[n] | BIT(c);
#endif
#ifdef PASS_TO_THE_NEWEST
		give_to_the_newest(n)
#else
		give(n, CLIENTS)
#endif
	:: else -> give_if_free(n)
	fi
}

/* A variant: a vote that has expired goes to the next waiter with any command, not only with a claim. */
inline give_if_free(n) {
#ifdef ANY_COMMAND_GIVES
	if
	:: owner[n] == FREE && !QUARANTINED(n) -> give(n, CLIENTS)
	:: else
	fi
#else
	skip
#endif
}

/* Node rule 4. */
inline on_yield(c, n) {
	if
#if defined(NO_STAMPS) || defined(YIELD_OF_ANY_STAMP)
	:: owner[n] == c + 1 ->
#else
	:: owner[n] == c + 1 && s == stamp[L(c, n)] ->
#endif
#ifndef YIELD_FORGETS_THE_CLAIM
		queue[n] = queue[n] | BIT(c);
#endif
		give(n, CLIENTS)
	:: else -> give_if_free(n)
	fi
}

#define FROM_CLIENT(channel, c, n)							\
	:: d_step {									\
		channel[L(c, n)] ? m, s ->						\
		printf("node %d receives %e(%d) from client %d\n", n, m, s, c);		\
		if									\
		:: m == TRY || m == CLAIM -> on_claim(c, n)				\
		:: m == PASS -> on_pass(c, n)						\
		:: m == YIELD -> on_yield(c, n)						\
		fi;									\
		tidy()									\
	}

proctype Node(byte n) {
end:	do
	FROM_CLIENT(to_node, 0, n)
#if CLIENTS > 1
	FROM_CLIENT(to_node, 1, n)
#endif
#if CLIENTS > 2
	FROM_CLIENT(to_node, 2, n)
#endif
#ifdef STRAYS
	FROM_CLIENT(stray, 0, n)
#if CLIENTS > 1
	FROM_CLIENT(stray, 1, n)
#endif
#if CLIENTS > 2
	FROM_CLIENT(stray, 2, n)
#endif
#endif
	od
}

/* ------------------------------------------------------------------------------------------------------- clients */

/* Client rule 6. */
inline take_ticket(c) {
	if
	:: has_ticket[c]
	:: else ->
		has_ticket[c] = true;
		for (i : 0 .. NODES - 1) {
			if
#ifdef TICKET_ONLY_WHERE_REFUSED
			:: counted[L(c, i)] != 0
#endif
			:: else -> send_to_node(c, i, CLAIM, 0)
			fi
		}
	fi
}

inline check_exclusion() {
	number = 0;
	for (i : 0 .. CLIENTS - 1) {
		if
		:: HOLDS(i) -> number++
		:: else
		fi
	}
	assert(number <= 1)				/* two holders */
}

inline count(c, n) {
	counted[L(c, n)] = s;
#ifdef DEADLINES
	late[L(c, n)] = false;
#endif
	if
	:: state[c] == WAITING && VOTES(c) >= NEED ->
		state[c] = HOLDING;
		printf("    client %d holds the lock\n", c);
		on_holding(c)
#ifdef REMEMBER_INQUIRIES
	:: state[c] == WAITING && VOTES(c) < NEED && asked[L(c, n)] == s -> yield(c, n)
#endif
	:: else
	fi;
	check_exclusion()
}

inline on_holding(c) {
#if !defined(DEADLINES) && !defined(HOLDER_YIELDS)
	for (i : 0 .. NODES - 1) {
		empty_out(to_client[L(c, i)]);		/* a holder ignores all of it */
#ifdef PUSH_APART
		empty_out(pushes[L(c, i)]);
#endif
		yielded[L(c, i)] = 0
	}
#endif
#ifdef ARRIVAL
	for (i : 0 .. CLIENTS - 1) {
		/* first in, first out */
		assert(LOST || i == c || state[i] != WAITING || arrival[i] == 0 || arrival[i] > arrival[c])
	}
#endif
#ifdef OVERTAKING
	for (i : 0 .. c) {
		if
		:: i < c && state[i] == WAITING && KNOWN_TO_ALL(i) ->
			overtaken[i]++;
			assert(overtaken[i] <= OVERTAKING)	/* overtaken */
		:: else
		fi
	}
#endif
	skip
}

#ifdef DEADLINES
#define IS_OVER(c, n)	(s <= over[L(c, n)])
#else
#define IS_OVER(c, n)	false
#endif

/* Client rule 2. */
inline on_granted(c, n) {
	if
#ifndef EXPIRED_GRANT_COUNTS
	:: IS_OVER(c, n) ->
		if
		:: state[c] == WAITING -> send_claim(c, n)
		:: else
		fi
#endif
#if !defined(NO_STAMPS) && !defined(YIELDED_GRANT_COUNTS)
	:: !IS_OVER(c, n) && s <= yielded[L(c, n)] ->
#ifndef NO_SECOND_YIELD
		send_to_node(c, n, YIELD, s)
#else
		skip
#endif
#endif
	:: else -> count(c, n)
	fi
}

/* Client rule 4. */
inline on_inquire(c, n) {
	if
#ifdef HOLDER_YIELDS
	:: state[c] == HOLDING -> send_to_node(c, n, YIELD, s)
#else
	:: state[c] == HOLDING
#endif
#ifdef NO_STAMPS
	:: state[c] == WAITING && counted[L(c, n)] == 0
#else
#ifdef REMEMBER_INQUIRIES
	:: state[c] == WAITING && counted[L(c, n)] != s -> asked[L(c, n)] = s
#else
	:: state[c] == WAITING && counted[L(c, n)] != s
#endif
#endif
	:: else -> yield(c, n)
	fi
}

inline yield(c, n) {
#ifdef UNCOUNT_AFTER_SENDING
	to_uncount[L(c, n)] = s;
#else
	counted[L(c, n)] = 0;
#endif
	yielded[L(c, n)] = s;
	printf("    client %d yields stamp %d to node %d\n", c, s, n);
	send_to_node(c, n, YIELD, s);
	take_ticket(c)
}

#define FROM_NODE(channel, c, n)							\
	:: d_step {									\
		channel[L(c, n)] ? m, s ->						\
		printf("client %d receives %e(%d) from node %d\n", c, m, s, n);		\
		if									\
		:: m == GRANTED -> on_granted(c, n)					\
		:: m == REFUSED && state[c] == WAITING -> take_ticket(c)		\
		:: m == REFUSED && state[c] != WAITING					\
		:: m == INQUIRE -> on_inquire(c, n)					\
		fi;									\
		tidy()									\
	}

/* A client that is gone or has crashed knows nothing any more. */
inline forget(c, n) {
	empty_out(to_client[L(c, n)]);
#ifdef PUSH_APART
	empty_out(pushes[L(c, n)]);
#endif
	counted[L(c, n)] = 0;
	yielded[L(c, n)] = 0;
#ifdef REMEMBER_INQUIRIES
	asked[L(c, n)] = 0;
#endif
#ifdef DEADLINES
	late[L(c, n)] = false;
	over[L(c, n)] = 0;
#endif
#ifdef UNCOUNT_AFTER_SENDING
	to_uncount[L(c, n)] = 0;
#endif
}

/* Client rule 3: release, cancel, or the end of the lease. */
inline leave(c) {
	printf("client %d passes\n", c);
	state[c] = GONE;
	has_ticket[c] = false;
	for (i : 0 .. NODES - 1) {
		forget(c, i);
		send_to_node(c, i, PASS, 0)
	};
	tidy()
}

#ifdef PUSH_APART
#define QUIET(c, n)	(empty(to_node[L(c, n)]) && empty(to_client[L(c, n)]) && empty(pushes[L(c, n)]))
#else
#define QUIET(c, n)	(empty(to_node[L(c, n)]) && empty(to_client[L(c, n)]))
#endif

/*
 * Client rule 5: a waiter looks again. A look that changes nothing is not a step of the model. So nothing is in flight
 * between the two, and the node has a free vote, or lacks the claim, or keeps its vote for this waiter, which does not
 * count it.
 */
#define IS_FORGOTTEN(c, n)								\
	(owner[n] == FREE								\
	|| (owner[n] != (c) + 1 && !(queue[n] & BIT(c)))				\
	|| (owner[n] == (c) + 1 && counted[L(c, n)] != stamp[L(c, n)]))
#define LOOK_AGAIN(c, n)								\
	:: d_step {									\
		state[c] == WAITING && link[L(c, n)] == UP && !QUARANTINED(n) && QUIET(c, n) && IS_FORGOTTEN(c, n) ->	\
		printf("client %d looks again at node %d\n", c, n);			\
		send_claim(c, n)							\
	}

/* Or the vote is with a waiter that has a higher ticket and does not know of the inquiry. */
#define KEEPS_A_LOWER_WAITING(c, o, n)							\
	(BEFORE(c, o, n) && state[o] == WAITING && link[L(o, n)] == UP && QUIET(o, n))
#define ASK_AGAIN(c, n)									\
	:: d_step {									\
		state[c] == WAITING && link[L(c, n)] == UP && QUIET(c, n) && (queue[n] & BIT(c))	\
		&& owner[n] != FREE && KEEPS_A_LOWER_WAITING(c, owner[n] - 1, n) ->	\
		printf("client %d asks node %d again\n", c, n);				\
		send_claim(c, n)							\
	}

#define REPEAT_CLAIM(c, n)								\
	:: d_step {									\
		faults > 0 && link[L(c, n)] == UP && state[c] == WAITING ->		\
		printf("client %d repeats its claim on node %d\n", c, n);		\
		faults--;								\
		send_claim(c, n)							\
	}

/* A grant can be late although the node still keeps the vote: the claim was long on its way. */
#define LATE_GRANT(channel, c, n)							\
	:: d_step {									\
		faults > 0 && state[c] == WAITING && channel[L(c, n)] ? [GRANTED, s] ->	\
		faults--;								\
		channel[L(c, n)] ? m, s;						\
		printf("client %d receives %e(%d) from node %d too late\n", c, m, s, n);	\
		send_claim(c, n);							\
		tidy()									\
	}

/* A mutant: the vote is uncounted only now. */
#define UNCOUNT(c, n)									\
	:: d_step {									\
		to_uncount[L(c, n)] != 0 ->						\
		if									\
		:: state[c] == WAITING && counted[L(c, n)] == to_uncount[L(c, n)] -> counted[L(c, n)] = 0	\
		:: else									\
		fi;									\
		to_uncount[L(c, n)] = 0							\
	}

#define FROM_REPLIES(c, n)	FROM_NODE(to_client, c, n)
#define FROM_PUSHES(c, n)	FROM_NODE(pushes, c, n)
#define LATE_REPLY(c, n)	LATE_GRANT(to_client, c, n)
#define LATE_PUSH(c, n)		LATE_GRANT(pushes, c, n)
#if NODES == 1
#define EACH_NODE(step, c)	step(c, 0)
#else
#define EACH_NODE(step, c)	step(c, 0) step(c, 1) step(c, 2)
#endif

proctype Client(byte c) {
	d_step {
		printf("client %d comes\n", c);
		state[c] = WAITING;
		has_ticket[c] = !(TRYERS & BIT(c));
		for (i : 0 .. NODES - 1) {
			send_claim(c, i)
		};
		tidy()
	};
	do
	EACH_NODE(FROM_REPLIES, c)
#ifdef PUSH_APART
	EACH_NODE(FROM_PUSHES, c)
#endif
#ifdef UNCOUNT_AFTER_SENDING
	EACH_NODE(UNCOUNT, c)
#endif
#if (defined(LOSSES) || defined(PUSH_APART)) && !defined(NO_LOOK)
	EACH_NODE(LOOK_AGAIN, c)
#ifndef INQUIRE_ONCE
	EACH_NODE(ASK_AGAIN, c)
#endif
#endif
#ifdef REPEATS
	EACH_NODE(REPEAT_CLAIM, c)
#endif
#ifdef EXPIRIES
	EACH_NODE(LATE_REPLY, c)
#ifdef PUSH_APART
	EACH_NODE(LATE_PUSH, c)
#endif
#endif
	:: d_step { state[c] == HOLDING -> leave(c) }; break
#ifdef CANCELS
	:: d_step { state[c] == WAITING && faults > 0 -> faults--; leave(c) }; break
#endif
#ifdef CRASHES
	:: state[c] == CRASHED -> break
#endif
	od
}

/* -------------------------------------------------------------------------------------------------------- faults */

/* The deadline of a counted vote passes. A waiter uncounts it and claims again (client rule 5). */
#define DEADLINE_PASSES(c, n)								\
	:: d_step {									\
		AHEAD(L(c, n)) && MAY_PASS(n) ->					\
		printf("the deadline of the vote of node %d passes on client %d\n", n, c);	\
		SPEND_A_DEADLINE(n);							\
		if									\
		:: state[c] == WAITING -> uncount_late(c, n)				\
		:: else -> late[L(c, n)] = true						\
		fi									\
	}

inline uncount_late(c, n) {
#ifndef LATE_VOTE_STAYS_COUNTED
	counted[L(c, n)] = 0;
#endif
	send_claim(c, n)
}

/* Older grants of a quarantined node run out in any case. */
#ifdef EXPIRIES
#define MAY_PASS(n)		(faults > 0 || QUARANTINED(n))
#define SPEND_A_DEADLINE(n)	if :: !QUARANTINED(n) -> faults-- :: else fi
#else
#define MAY_PASS(n)		(QUARANTINED(n))
#define SPEND_A_DEADLINE(n)	skip
#endif

/* A vote expires on a node, silently. The deadline on its client has passed before. */
#if defined(LATE_VOTE_STAYS_COUNTED)
#define RAN_OUT(l)	(state[(l) / NODES] == WAITING || late[l] || counted[l] == 0)
#else
#define RAN_OUT(l)	(late[l] || counted[l] != stamp[l])
#endif
#define VOTE_EXPIRES(c, n)								\
	:: d_step {									\
		owner[n] == (c) + 1 && state[c] != CRASHED && RAN_OUT(L(c, n)) && (faults > 0 || late[L(c, n)]) ->	\
		printf("the vote of client %d expires on node %d\n", c, n);		\
		if :: late[L(c, n)] :: else -> faults-- fi;				\
		if									\
		:: state[c] == GONE							\
		:: else -> over[L(c, n)] = stamp[L(c, n)]				\
		fi;									\
		owner[n] = FREE;							\
		drop_claim(c, n)							\
	}

#define CLAIM_EXPIRES(c, n)								\
	:: d_step {									\
		(queue[n] & BIT(c)) && state[c] == WAITING && faults > 0 ->		\
		printf("the claim of client %d expires on node %d\n", c, n);		\
		faults--;								\
		drop_claim(c, n)							\
	}

inline drop_claim(c, n) {
	queue[n] = queue[n] & ~BIT(c);
	ticketed[n] = ticketed[n] & ~BIT(c);
#ifdef ARRIVAL
	arrival[c] = 0
#endif
}

#define CRASH(c)									\
	:: d_step {									\
		faults > 0 && (state[c] == WAITING || state[c] == HOLDING) ->		\
		printf("client %d crashes\n", c);					\
		faults--;								\
		state[c] = CRASHED;							\
		has_ticket[c] = false;							\
		for (i : 0 .. NODES - 1) {						\
			forget(c, i)							\
		};									\
		tidy()									\
	}

/* The votes and claims of a crashed client expire. So does a claim that arrives after the pass of its client. */
#ifdef STRAYS
#define LEFT(c, n)	(state[c] == CRASHED || (state[c] == GONE && link[L(c, n)] == UP && empty(to_node[L(c, n)])))
#else
#define LEFT(c, n)	(state[c] == CRASHED)
#endif
#define REMAINS_EXPIRE(c, n)								\
	:: d_step {									\
		LEFT(c, n) && owner[n] == (c) + 1 ->					\
		printf("the vote that client %d has left expires on node %d\n", c, n);	\
		owner[n] = FREE;							\
		drop_claim(c, n)							\
	}										\
	:: d_step {									\
		LEFT(c, n) && (queue[n] & BIT(c)) ->					\
		printf("the claim that client %d has left expires on node %d\n", c, n);	\
		drop_claim(c, n)							\
	}

inline lose_messages(c, n) {
	empty_out(to_node[L(c, n)]);
	empty_out(to_client[L(c, n)]);
#ifdef PUSH_APART
	empty_out(pushes[L(c, n)])
#endif
}

inline lose_strays(c, n) {
#ifdef STRAYS
	empty_out(stray[L(c, n)])
#else
	skip
#endif
}

#define MAY_STRAY(c, n)	(faults > 0 && link[L(c, n)] == UP && empty(stray[L(c, n)]) && nempty(to_node[L(c, n)]))
#define STRAY(c, n)									\
	:: d_step {									\
		MAY_STRAY(c, n) ->							\
		printf("client %d gives up its connection to node %d\n", c, n);	\
		faults--;								\
		do									\
		:: len(to_node[L(c, n)]) > 0 -> to_node[L(c, n)] ? m, s; stray[L(c, n)] ! m, s	\
		:: else -> break							\
		od;									\
		lose_messages(c, n);							\
		link[L(c, n)] = BROKEN;							\
		tidy()									\
	}

#define IS_ALIVE(c)	(state[c] == WAITING || state[c] == HOLDING)
#define MAY_BREAK(c, n)	(faults > 0 && link[L(c, n)] == UP && (IS_ALIVE(c) || nempty(to_node[L(c, n)])))
#define BREAK(c, n)									\
	:: d_step {									\
		MAY_BREAK(c, n) ->							\
		printf("the connection of client %d to node %d breaks\n", c, n);	\
		faults--;								\
		lose_messages(c, n);							\
		link[L(c, n)] = BROKEN;							\
		tidy()									\
	}										\
	:: d_step {									\
		MAY_BREAK(c, n) && IS_ALIVE(c) ->					\
		printf("the connection of client %d to node %d breaks, and the node notices\n", c, n);	\
		faults--;								\
		lose_messages(c, n);							\
		link[L(c, n)] = NOTICED;						\
		tidy()									\
	}

/* Client rule 5: claim after a reconnection. Client rule 3: repeat the pass. */
#define RECONNECT(c, n)									\
	:: d_step {									\
		(link[L(c, n)] == BROKEN || link[L(c, n)] == NOTICED) && state[c] != CRASHED ->	\
		printf("client %d reconnects to node %d\n", c, n);			\
		link[L(c, n)] = UP;							\
		on_reconnect(c, n)							\
	}

inline on_reconnect(c, n) {
	if
#ifndef NO_CLAIM_AFTER_RECONNECTION
	:: state[c] == WAITING -> send_claim(c, n)
#endif
#ifndef NO_SECOND_PASS
	:: state[c] == GONE -> send_to_node(c, n, PASS, 0)
#endif
	:: else
	fi
}

#define RESTART(n)									\
	:: d_step {									\
		faults > 0 && !quarantined[n] ->					\
		printf("node %d restarts empty\n", n);					\
		faults--;								\
		owner[n] = FREE;							\
		queue[n] = 0;								\
		ticketed[n] = 0;							\
		for (i : 0 .. CLIENTS - 1) {						\
			lose_messages(i, n);						\
			lose_strays(i, n);						\
			if								\
			:: state[i] == WAITING || state[i] == HOLDING -> link[L(i, n)] = BROKEN	\
			:: else								\
			fi;								\
			start_anew(i, n)						\
		};									\
		quarantine(n);								\
		tidy()									\
	}

inline start_anew(c, n) {
#ifdef ARRIVAL
	arrival[c] = 0;
#endif
#ifdef STAMPS_START_ANEW
	stamp[L(c, n)] = 0;
	over[L(c, n)] = 0;
#endif
	skip
}

inline quarantine(n) {
#ifdef NO_QUARANTINE
	skip
#else
	quarantined[n] = true
#endif
}

/* The quarantine ends when every older grant is over. */
#if CLIENTS == 1
#define OLD_GRANT_AHEAD(n)	AHEAD(L(0, n))
#elif CLIENTS == 2
#define OLD_GRANT_AHEAD(n)	(AHEAD(L(0, n)) || AHEAD(L(1, n)))
#else
#define OLD_GRANT_AHEAD(n)	(AHEAD(L(0, n)) || AHEAD(L(1, n)) || AHEAD(L(2, n)))
#endif
#define QUARANTINE_ENDS(n)								\
	:: d_step {									\
		quarantined[n] && !OLD_GRANT_AHEAD(n) ->				\
		printf("the quarantine of node %d ends\n", n);				\
		quarantined[n] = false;							\
		for (i : 0 .. CLIENTS - 1) {						\
			if								\
			:: state[i] == WAITING || state[i] == HOLDING -> over[L(i, n)] = stamp[L(i, n)]	\
			:: else								\
			fi								\
		};									\
		tidy()									\
	}

#if CLIENTS == 1
#define EACH_CLIENT(step)	step(0)
#define EACH_LINK(step)		EACH_NODE(step, 0)
#elif CLIENTS == 2
#define EACH_CLIENT(step)	step(0) step(1)
#define EACH_LINK(step)		EACH_NODE(step, 0) EACH_NODE(step, 1)
#else
#define EACH_CLIENT(step)	step(0) step(1) step(2)
#define EACH_LINK(step)		EACH_NODE(step, 0) EACH_NODE(step, 1) EACH_NODE(step, 2)
#endif
#if NODES == 1
#define ANY_NODE(step)		step(0)
#else
#define ANY_NODE(step)		step(0) step(1) step(2)
#endif

#ifdef LOSSES
proctype Faults() {
end:	do
#ifdef DEADLINES
	EACH_LINK(DEADLINE_PASSES)
#endif
#ifdef EXPIRIES
	EACH_LINK(VOTE_EXPIRES)
	EACH_LINK(CLAIM_EXPIRES)
#endif
#ifdef CRASHES
	EACH_CLIENT(CRASH)
#endif
#if defined(CRASHES) || defined(STRAYS)
	EACH_LINK(REMAINS_EXPIRE)
#endif
#ifdef BREAKS
	EACH_LINK(BREAK)
#endif
#ifdef STRAYS
	EACH_LINK(STRAY)
#endif
#if defined(BREAKS) || defined(STRAYS) || defined(RESTARTS)
	EACH_LINK(RECONNECT)
#endif
#ifdef RESTARTS
	ANY_NODE(RESTART)
#ifndef NO_QUARANTINE
	ANY_NODE(QUARANTINE_ENDS)
#endif
#endif
	od
}
#endif

init {
	atomic {
#ifdef ONE_DOWN
		for (i : 0 .. CLIENTS - 1) {
			link[L(i, NODES - 1)] = DOWN
		};
#endif
		run Node(0);
#if NODES > 1
		run Node(1);
		run Node(2);
#endif
		run Client(0);
#if CLIENTS > 1
		run Client(1);
#endif
#if CLIENTS > 2
		run Client(2);
#endif
#ifdef LOSSES
		run Faults()
#endif
	}
}

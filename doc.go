// Package coord coordinates Go processes: locks, elections, queues, barriers,
// transactions, membership and shared values, after the recipe guide of ZooKeeper.
// Waits take a context, losses and changes arrive on channels, and the recipes
// stand on a small pluggable backend. Packages backend/zookeeper and backend/etcd, a module of its
// own, are the backends for production, backend/memory the one for tests and single processes.
// Package coordtest is for the tests of code that uses coord.
//
//	c, err := coord.Open(ctx, zookeeper.New(servers, nil), nil)
//	if err != nil {
//		return err
//	}
//	defer c.Close()
//
//	m := coord.NewMutex(c, "/locks/reindex", nil)
//	err = m.Do(ctx, func(ctx context.Context, h *coord.Hold) error {
//		return reindex(ctx, h.Token()) // ctx ends if the lock is lost
//	})
//
// # Which recipe
//
// By purpose:
//
//   - One at a time: [Mutex.Do]. A limited number at a time: [Semaphore].
//   - A scheduled job, once in a whole cluster, or a service of which one instance is
//     active: [Election.Run]. Record what was done in a [Value] written under the
//     Guard. (A lock taken for each run is not enough: the next instance gets it when
//     the first has finished.) See the example OncePerPeriod of the package, in
//     example_compose_test.go, and the program examples/singleton.
//   - Work for many workers, with retries: a [Queue], its [Consumer.Work], and
//     MaxAttempts. In a loop of your own, Ack what is done and Nack what failed. See
//     the example Retries. What failed too often: [Consumer.Dead] shows it with the
//     reason, [Consumer.Redrive] puts it back, and [Consumer.Remove] deletes it.
//   - Work that never ends, in a fixed number of pieces, each done by one of the
//     processes that are there (partitions, tenants, buckets of timers): [Shards.Run].
//   - Which instances are there, and which one to call: a [Group], its Join and its
//     [Picker]. See the example of Picker for calls with net/http; the module grpcresolver
//     makes a Group the target of a gRPC client.
//   - Configuration that follows changes: [Value.Watch], and [Value.Load] where each request
//     reads it; a whole tree: [Cache], and [CacheView] for typed values.
//   - Begin together, end together: [DoubleBarrier].
//   - Several writes, all or none: [Txn] on the service, [Coordinator] over
//     databases and processes.
//
// By name:
//
//   - [Mutex]: one holder at a time. [MutexOptions].Keep: a client that takes the lock again
//     and again does so in memory, until another client comes.
//   - [RWMutex]: one writer, or any number of readers; a writer can become a reader.
//   - [Semaphore]: a number of permits; a caller acquires any number of them, all or
//     none.
//   - [LockAll]: several locks, all or none; one round trip if they are free.
//   - [Mutex.Revoke], [RWMutex.Revoke]: ask the holder to release, or force it to.
//   - [Election]: one leader among candidates, and which one it is. [Election.Revoke]: a
//     planned hand-over.
//   - [Barrier]: blocks all waiters until it is removed. [DoubleBarrier]: a number of
//     members begin together and end together, round after round.
//   - [Queue], [PriorityQueue], [DelayQueue]: work for any number of consumers, at
//     least once with Ack, at most once with Pop.
//   - [Txn]: writes that are applied all or none, under conditions and the Guard of
//     a hold.
//   - [Coordinator], [Participant]: a transaction over sites that all commit or all
//     abort; no site waits for a dead one past the deadline.
//   - [Group]: the members that are there, with names and addresses, and a choice of
//     one to call.
//   - [Shards]: n pieces of work divided among the members that are there, each with one
//     owner, and few that move when members come and go.
//   - [Value]: a typed configuration value that can be watched, and loaded without a request.
//   - [Counter]: a number to add to, and blocks of numbers for ids.
//   - [Cache]: a live copy of a subtree, to read without a round trip. [CacheView]: its
//     nodes as values of a type.
//   - Package inspect: what stands under a path: which recipe, its holders, and
//     which waiter waits for which; and which recipes there are in a tree.
//
// # What is common to all
//
// NewMutex and its like do no I/O and return no error: the first call reports a bad
// path or option. They take a client, which must not be nil, and a path, which is
// absolute and below the client's namespace. Options may be nil. The zero values of
// the types themselves do not work, except those of [Guard], [Codec] and options.
// Everything is safe for concurrent use, except building a [Txn]. Only the [Client]
// has to be closed, and one for a process is enough; Close ends all that was made of
// it. Release gives a hold back earlier, and Leave a membership of a group.
//
// While the service cannot be reached, a call that needs it waits until it can be
// reached or until ctx ends. So does TryX, which waits for no other client.
//
// Loops end in one way. When its ctx ends, a channel is closed and an iterator ends,
// without another element. Any other end is a failure: the last element has the
// error (the channel of [Consumer.Items] has no place for it and is closed; the error
// is logged). The list of [Consumer.Dead] has an end of its own, so the end of ctx is a
// failure there.
//
// A call that runs until its ctx ends returns nil if the end of ctx is the request to
// finish the work that was handed out, and the call has waited for that: [Consumer.Work]
// and [Shards.Run]. It returns the error of its ctx if it just stops: [Election.Run],
// [Participant.Serve] and [Cache.Run]. So does every call that waits for something.
//
// # Words
//
// The service is a tree of nodes, each with data of at most about a megabyte,
// named by paths as files are. An ephemeral node is deleted with the session that
// created it. A sequential node gets a number appended to its name; the number
// grows. A container is deleted some time after it has become empty. The service
// numbers its commits: such a number is a zxid. The czxid of a node is that of its
// creation, the mzxid that of its latest change.
//
// A session is one life on the service. It is connected, suspended (no contact
// at the moment; contact may return) or lost (over for good). A [Client] keeps one
// session at a time and opens the next when one is lost; [Client.WatchState] reports
// the state.
//
// A [Hold] is something that can be lost: a lock that was granted, a [Term] of
// leadership, a [Shard], an [Item] of a queue, an [Entry] of a double barrier. When it ends,
// its Done channel is closed and its Context ends.
//
// A channel of states, leaders, members or values is latest-wins: a slow reader
// misses intermediate elements, but never the newest. It is closed when its context
// ends; if it fails for good, its last element says why.
//
// A token is the fencing token of an exclusive hold: a number that grows from one
// holder to the next on one path. With [MutexOptions].Keep it grows from one client to the
// next, and is the same for the holds of one client in between.
//
// A [Guard] is the condition "this hold still stands". The service checks it in
// the same transaction as a write.
//
// # What is promised
//
// One holder. At most one client has the node at the head of the queue of contenders,
// in the order in which the nodes were created. No lost reply, lost request, expired
// session or caller that gives up makes two holders, or leaves a node behind that blocks
// the others for longer than the session lasts.
//
// Given up is gone. A call that ends before its turn removes its node, and returns when
// that is done. (If a Release of the same client is creating the node of the next
// [Mutex.Lock] when that call ends, the Release removes it before it returns.) Without
// contact, or without an answer for a second, the call that removes the node returns
// earlier, and the removal continues in the background. The client's next acquisition on
// the same path waits for the removal first, bounded by its own ctx, so on one session a
// client never meets a node of an earlier call of its own. Another client can meet it, and
// after a lost session the client itself, until the removal is done or the service has
// ended that session. [DoubleBarrier.Enter] counts no node of an earlier call of its own
// client, also after a lost session. (A removal that the service refuses is logged and
// retried. Only [DoubleBarrier.Enter] waits for one; TryX finds the lock taken, and Join the
// id.) Close waits up to two seconds for such work, while there is contact.
//
// Told in time. A client declares its session lost by its own clock, before the
// service ends it: when the session timeout, less the backend's LossMargin, has passed
// since the latest request that was answered was sent. A lost session ends its holds.
// So a holder that is cut off is told before another client is granted, with these
// limits:
//
//   - A process that is paused, or whose machine is, believes in its hold while it is
//     paused. When it continues, Err, Done and the next call report the loss at once.
//   - A follower of a ZooKeeper ensemble answers pings for up to syncLimit ticks
//     after it has lost its leader. To be told first even then takes a LossMargin
//     of at least (syncLimit + 2) ticks and the drift of the clocks.
//   - If a client deletes the node of another client's hold by hand, the next client
//     can be granted before the holder is told.
//
// Exact where it must be. Where two writers at once could do harm, do not rely on
// time. Let the resource refuse a token lower than the highest it has seen; or, if the
// write is to a node of the same service, write in a transaction under the Guard. Both
// are exact, whatever is paused, cut off or deleted. Tokens do not survive the
// restoring of an older snapshot of the service.
//
// Waiting goes on. A session that is lost while a caller waits does not end the wait:
// the caller rejoins at the tail of the queue with the next session. The wait ends with
// its ctx, with Close, or with a refusal: no permission, or a limit that is reached.
// The ctx of an acquisition bounds the acquisition, never the hold.
//
// All this depends on a service that agrees with itself. ZooKeeper has had defects by
// which a server that is killed right after a change of leader returns with nodes
// that the other servers lack, or lacks some of theirs (for example ZOOKEEPER-3911,
// 4785 and 5010). The tests of this library have seen this with 3.8.0: a client that is
// connected to that server waits behind a node that only that server has. By the release
// notes 3911 is fixed in 3.5.10, 3.6.3 and later lines, and 4785 in 3.9.2; 5010 was reported
// of 3.8.5. Run the latest patch of your line. Restart such a server without its data.
//
// Reads are sequentially consistent, as ZooKeeper's are: a client sees its own
// writes, never goes back, and can be behind other clients. A grant catches up: a
// holder that reads through the same client sees all that earlier holders had written
// to the service when their holds ended.
//
// # When a consumer dies
//
// What happens to the items of a queue whose consumer dies, or loses its session, depends
// on how it consumes. "Redelivered" means that another consumer gets the item, at its old
// place, with the next Attempt, when the service has ended the session; MaxAttempts
// bounds that. A consumer that lost its session without dying is told, and its Ack fails.
//
//	consumer         died before its Ack, or Pop's deletion          died afterwards
//	Take, TryTake    the item is redelivered                         nothing is lost
//	All              the same, also of up to Prefetch items that     nothing is lost
//	                 the loop has not reached
//	Items            the same, also of the item that waits to be     nothing is lost
//	                 received
//	Work             the item of each handler is redelivered         nothing is lost
//	Pop              the item is redelivered                         the item is lost
//
// So only Pop loses an item, and only Pop never hands one out twice. With the others, what
// a consumer has done before it died is done again. To do it once, make it idempotent, or
// write it in a [Txn] that also creates a node named after the item's ID, which fails the
// second time. A Txn under the Guard of the item refuses the writes of an earlier
// consumer, but the Ack is a commit of its own, after it.
//
// Prefetched items that no loop body or handler has seen count as an attempt too if the
// consumer dies: with MaxAttempts 1 they become dead letters unprocessed. A consumer that
// closes its client, or whose ctx ends, gives them back, which counts as none.
//
// ClaimTimeout does not matter when a consumer dies: the end of its session frees its items.
// It is for a consumer that hangs while its session lives, and redelivers the item when the
// time has passed.
//
// A producer that dies during a Put has put the value or not, never twice. A PutOp puts it
// if and only if the transaction is applied: a consumer that puts into the next queue, in a
// Txn under the Guard of its item, and dies before its Ack, puts it again at the
// redelivery.
//
// # Errors
//
// All errors are found with errors.Is. An error of a call names the operation and the
// path (*backend.Error). An error that ended a hold names the node. An error of a
// refused transaction names the part that was refused ([ConflictError]). Where an error
// has another meaning than in this table, the comment of the call says so.
//
//	error            what it means                           what the caller does
//	ctx's own        the wait was given up                   nothing; see "Given up is gone"
//	ErrNoContact     with ctx's own: no contact at its end   retries later; a server answers 503
//	ErrLocked        TryX, Remove: a hold is in the way      retries later, or waits with Lock
//	ErrLost          the hold ended before its release       stops its work under the hold
//	ErrReleased      the hold was released                   nothing
//	ErrSessionLost   with ErrLost: no contact for too long   takes a new hold
//	ErrDeleted       with ErrLost: the node was deleted      looks for a lost session, else who deletes
//	ErrRevoked       with ErrLost: taken away by force       stops, and finds out why
//	ErrSuspended     with ErrLost: StepDownOnSuspend         campaigns again
//	ErrClaimTimeout  with ErrLost: ClaimTimeout has passed   obeys the item's Context
//	ErrHeld          Lock with the ctx of its own hold       uses that hold
//	ErrUpgrade       a reader asks to become the writer      releases first
//	ErrClosed        the client was closed                   opens a new one
//	ErrEmpty         TryTake, Peek: nothing is there         waits with Take, or retries later
//	ErrFull          MaxLen and FailWhenFull                 backs off
//	ErrDuplicate     the id is already in use                uses another, or waits
//	ErrConflict      changed since it was read               reads, and decides again
//	ErrFenced        with ErrConflict: a guard's hold ended  does not write
//	ErrInDoubt       a transaction's record was destroyed    asks the other sites
//	ErrDecode        the codec refuses what a node holds     finds what wrote it
//	ErrKind          another kind of recipe has the path     uses another path, see "Nodes"
//	ErrUncertain     a write may have been applied           reads, before it writes again
//	ErrNotFound      none there                              decides whether to create it
//	ErrExists        a node, or another barrier, is there    decides whose it is
//	ErrBadVersion    a Txn's IfVersion does not hold         reads, and decides again
//	ErrNoChildren    an ephemeral node is at the path        uses another path
//	ErrNotEmpty      nodes of others are below it            finds out whose they are
//	ErrDenied        no permission, or refused credentials   fixes ACLs, see "Permissions"
//	ErrTooLarge      over the limit of a request             stores less
//	ErrNoSpace       the service is full; deletions go on    deletes, has it enlarged
//	ErrBadPath       the service cannot have the path        fixes the path
//	ErrInvalid       an argument or option makes no sense    fixes it
//	ErrUnsupported   the service lacks a feature             does without
//	ErrLimit         numbers used up, or a limit is reached  see the recipe
//
// Release returns nil only if the hold stood until then. It returns an error that
// matches ErrLost if the hold was lost before, even if only the removal of its node
// reveals that. It returns ErrUncertain if the reply to the removal was lost and the
// node is gone, since another client may have deleted it before. The node is gone in
// both cases. Any other error is a refusal by the service; the removal is retried in
// the background for as long as the session lives. Do joins the error of Release with
// its own. A lock with MutexOptions.Keep is released without a request, and nil means that
// the client knew of no loss.
//
// # Nodes
//
// Each recipe documents its layout. The directories of recipes, and those missing above
// them, are created on first use as containers, which ZooKeeper, and on etcd the
// sessions of clients, remove some time after they are empty. The data of a recipe's directory belongs to
// the recipe: it is the mark "coord recipe: " followed by the name of the kind. Below
// the client's namespace, /_coord belongs to the library.
//
// One path, one recipe. A recipe that meets another kind on its path refuses with
// ErrKind, before it writes. Each client checks at its first use of the path, and in a
// queue of contenders before each grant. Reads of a [Value], a [Counter] and a [Barrier]
// refuse too. Calls that only look at a directory find nothing of their own there:
// Leader, WatchLeader, Contenders, Members, Watch of a Group, Len, Peek, State, Limit,
// Status and List.
//
// Recipes can be used below the path of a Value, a Counter or a Barrier in any order; below
// the paths of others they are foreign nodes.
//
// A path is free for another kind when its node is gone. The service deletes an empty
// directory when it collects containers: ZooKeeper looks once a minute, on etcd the clients do. A Value, a
// Counter, a Barrier, path/limit of a Semaphore and path/items of a queue stay until they
// are deleted; so do the nodes below a Coordinator's path.
//
// These may share a path:
//
//	recipe               with
//	Mutex                Curator's InterProcessMutex and LeaderSelector, kazoo's Lock
//	RWMutex              Curator's InterProcessReadWriteLock
//	Election             Curator's LeaderLatch, kazoo's Election
//	Barrier              Curator's DistributedBarrier, kazoo's Barrier
//	Value, Counter       each other, where the codec writes a number
//	Cache, inspect       everything: they only read
//	all others           none but their own kind
//
// An empty directory without a mark shows no kind, and the first recipe that uses it
// claims it. (Earlier versions of this library, Curator and kazoo leave such directories
// while they are not in use.) Nothing is set in a directory: a Value there reads as
// ErrNotFound, a Counter as 0, a Barrier as not set, until one is set, at the path of which
// other recipes then are refused. A node that holds no data and was
// written since its creation counts as a Value of no bytes. Data that other programs
// write to the node of a recipe in use can be lost: see [KindError].
//
// # Permissions
//
// Where nodes have ACLs, a client needs these permissions on the directories and the
// nodes of a recipe:
//
//	recipe                           permissions
//	Mutex, RWMutex, Election, Group  read, create, delete
//	  Revoke, SetValue, Announce     write
//	Cache, inspect                   read
//	all others                       read, write, create, delete
//
// Without write on its directory, an acquisition costs one or two requests more. A
// semaphore's waiter without write on its own node fails at once with ErrDenied: it
// writes there when it is granted, and the waiter behind it relies on that.
//
// The first client at a path creates the directories above it, and needs create on the
// lowest of those that exist. These directories belong to no recipe, nor does
// /_coord/journal, in which the recipes of the last line create nodes. By default all
// clients may create in them, so that clients with other credentials can use neighbouring
// paths; see ParentACL of package backend/zookeeper. A [Value], a [Counter] and a
// [Barrier] are nodes in such a directory, so deleting one takes the permission to delete
// there.
//
// An error that matches ErrDenied says which node refused, and which permission it does
// not grant: errors.As finds a *backend.DeniedError. The creation and the deletion of a
// node are refused by its parent.
//
// All clients of one path must be able to read each other's nodes: give them one
// ACL. ZooKeeper from 3.8.4 on, and earlier versions of some distributions, do not notify
// a session of the creation, change or deletion of a node that the session may not read,
// so a waiter behind such a node could wait for ever. To detect this, the first wait of a
// session in a queue of contenders, and each wait behind a client that is not coord, asks
// for permission to read, and fails with ErrDenied. A client that waits for a node to be
// created, such as the ready node of a DoubleBarrier, cannot ask: if it may not read that
// node, it learns of it with its next connection to the service.
//
// # What goes on
//
// Options.Trace is called with a [trace.Event] where that helps an operator: where a call
// waits, where a hold is granted, lost, released or changes hands, and where the outcome
// is not what was asked for. It costs nothing when it is nil. Package oteltrace, a module
// of its own, makes OpenTelemetry spans and metrics of the events. Options.Logger gets
// what an operator should know without asking: lost sessions and holds, and what the
// service refuses in the background. Neither reveals the data that users store. Package
// status is an HTTP handler that says what a process holds, leads, waits for and consumes,
// with probes of liveness and readiness. Package
// inspect explains a path, and the command cmd/coordctl does so from a shell. The backlog
// of a queue and its age are in [Consumer.Stats], in oteltrace's gauges and in coordctl's
// queue.
//
// Both are called on goroutines of their own, and nothing waits for them. However
// slow they are, holds end in time and calls return; what exceeds their queues is dropped
// and counted. So events and lines arrive shortly after what they report, in order. Close
// waits for them for a second.
//
// The guides of the repository (docs/README.md) are for those who operate a program: production
// and security, sizes, queues, a runbook.
//
// # Testing with fake time
//
// The memory backend works inside a testing/synctest bubble: partitions, expiry
// and waiting happen in fake time. A deadlock of the code under test shows as a
// deadlock of the bubble.
package coord

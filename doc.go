// Package coord coordinates Go processes: locks, elections, queues, barriers, transactions,
// membership and shared values, after the recipe guide of ZooKeeper.
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
// # Which service
//
// The recipes run on a service, through a backend:
//
//   - backend/zookeeper: ZooKeeper 3.5.3 or later. Curator and kazoo can share the paths of
//     some recipes.
//   - backend/etcd, a module of its own: etcd 3.4 or later.
//   - backend/postgres, a module of its own: PostgreSQL 13 or later, for up to some 50 to 100
//     clients. A transaction of the application can depend on a hold, or carry a [Txn].
//   - backend/memory: one process, and tests. In a testing/synctest bubble, partitions,
//     expiry and waiting take fake time.
//
// Package coordtest helps to test code that uses coord, in memory and on real servers. The
// guides for operators are in the folder docs of the repository.
//
// # Which recipe
//
//   - [Mutex]: one holder at a time. [LockAll] acquires several locks, all or none.
//     [Mutex.Revoke] asks the holder to release, or forces it to.
//   - [RWMutex]: one writer, or any number of readers.
//   - [Semaphore]: a limited number of permits; a caller acquires several of them at once.
//   - [Election]: one leader among candidates.
//   - [Schedule]: a job that runs at planned times, once in a whole cluster. A lock for each
//     run is not enough: the next instance gets it when the first has finished.
//   - [Queue], [PriorityQueue], [DelayQueue]: work for any number of consumers, with
//     retries and dead letters (example Retries). [Consumer.Work] runs the handlers.
//   - [Shards]: a fixed number of pieces of endless work (partitions, tenants), each with
//     one owner among the processes.
//   - [Group]: the members that are there, with names and addresses. [Picker] chooses one
//     for each call; module grpcresolver does so for gRPC clients.
//   - [Value]: a typed configuration value. [Value.Watch] reports changes, and [Value.Load]
//     reads without a request. [Counter]: a number, and blocks of ids.
//   - [Cache]: a live copy of a subtree in memory. [CacheView]: its nodes as values of a
//     type.
//   - [Barrier]: blocks all waiters until it is removed. [DoubleBarrier]: members begin
//     together and end together, round after round.
//   - [Txn]: writes on the service that are applied all or none, under conditions and
//     guards.
//   - [Coordinator], [Participant]: two-phase commit over databases and processes.
//
// # Words
//
// The service stores a tree of nodes with data. An ephemeral node is deleted with the
// session that created it. A sequential node gets a growing number appended to its name. A
// container is deleted some time after it has become empty. A zxid is the number of a
// commit: the czxid of a node is the zxid of its creation, the mzxid that of its latest
// change.
//
// A [Client] is a connection to the service; a process needs only one. It keeps one session
// at a time, and opens the next one when a session is lost. A session is connected,
// suspended (contact is broken and may return) or lost (over for good): see
// [Client.WatchState].
//
// A [Hold] is something that can be lost: a granted lock, a [Term] of leadership, a
// [Shard], an [Item] of a queue, an [Entry] of a double barrier. When it ends, its Done
// channel is closed and its Context ends.
//
// A token is the fencing token of an exclusive hold: a number that grows from one holder to
// the next on one path (with [MutexOptions].Keep, from one client to the next). A resource
// refuses late writes if it refuses a token lower than the highest it has seen.
//
// A [Guard] is the condition "this hold has not ended". The service checks it in the same
// transaction as a write.
//
// # Conventions
//
// NewMutex and the other constructors do no I/O and return no error: the first call reports
// a bad path or option. They take a client, which must not be nil, and an absolute path,
// to which the client adds its namespace. Options may be nil. Only the zero values of
// [Guard], [Codec] and options work. Everything is safe for concurrent use, except building
// a [Txn]. A program has to close only the [Client]: Close ends all recipes of the client.
//
// While the service cannot be reached, a call that needs it waits until contact returns or
// ctx ends. TryLock and the other TryX calls wait for contact too, but for no other client.
// The ctx of an acquisition bounds the acquisition, never the hold.
//
// When the ctx of a loop ends, its channel is closed or its iterator ends, without another
// element. If a loop fails, its last element has the error. There are two exceptions:
// [Consumer.Items] closes its channel and logs the error, and [Consumer.Dead] and
// [Consumer.Retries] report the end of ctx as an error. A channel of states, leaders, members or values is latest-wins: a
// slow reader misses intermediate elements, but never the newest.
//
// [Consumer.Work], [Shards.Run] and [Schedule.Run] return nil when ctx has ended and their handlers have
// finished. Every other call that runs or waits until its ctx ends, such as [Election.Run],
// returns the error of ctx.
//
// # What is promised
//
// One holder. Contenders queue in the order in which their nodes were created, and at most
// one client has the node at the head. No lost reply, lost request, expired session or
// abandoned call makes two holders. None of these leaves a node that blocks others for
// longer than the session lasts.
//
// Loss is reported in time. A client measures the time since it sent the latest request
// that was answered. After the session timeout less the backend's LossMargin it declares
// its session lost, before the service ends the session. A lost session ends its holds. So
// a holder that is cut off learns of the loss before another client is granted, with these
// limits:
//
//   - A paused process learns of the loss when it continues, by Err, Done and the next call.
//   - A follower of a ZooKeeper ensemble answers pings for up to syncLimit ticks after it
//     has lost its leader. If the holder must learn of the loss first even then, set a
//     LossMargin of at least (syncLimit + 2) ticks and the drift of the clocks.
//   - If a client deletes the node of another client's hold, the next client can be granted
//     before the holder learns of the loss.
//
// Fencing is exact, whatever is paused, cut off or deleted. If two writers at once could do
// harm, let the resource refuse an old token or, for a write to the same service, use a
// [Txn] under the Guard. If an older snapshot of the service is restored, tokens can repeat.
//
// A wait survives its session: the caller rejoins at the tail of the queue with the next
// session. The wait ends with its ctx, with Close, or with a refusal: no permission, or a
// limit that is reached.
//
// An abandoned call removes its node. A call that ends before its turn returns when its
// node is removed. Without contact, or without an answer for a second, the call returns
// earlier and the removal continues in the background. The client's next acquisition on the
// path waits for that removal, bounded by its own ctx. So on one session a client never
// waits behind a node of its own earlier call. Other clients, and the client itself after a
// lost session, can wait behind that node until it is removed or the service has ended the
// session. If the service refuses the removal, the client logs that and retries; until then
// TryLock returns ErrLocked, and Join finds the id taken.
//
// Reads are sequentially consistent: a client sees its own writes, never goes back, and can
// be behind other clients. After a grant, a holder that reads through the same client sees
// everything that earlier holders had written to the service when their holds ended.
//
// A queue delivers at least once, with Pop at most once: see [Consumer].
//
// These promises need servers that agree on their data. production.md names versions of
// ZooKeeper that sometimes do not.
//
// # Errors
//
// All errors are found with errors.Is. An error of a call names the operation and the path
// (*backend.Error), an error that ended a hold names the node, and an error of a refused
// transaction names the refused part ([ConflictError]). Where an error has another meaning
// than in this table, the comment of the call says so.
//
//	error            what it means                           what the caller does
//	ctx's own        the wait was given up                   nothing: its node is removed
//	ErrNoContact     with ctx's own: no contact at its end   retries later; a server answers 503
//	ErrLocked        TryX, Remove: a hold is in the way      retries later, or waits with Lock
//	ErrLost          the hold ended before its release       stops its work under the hold
//	ErrReleased      the hold was released                   nothing
//	ErrSessionLost   with ErrLost: no contact for too long   takes a new hold
//	ErrDeleted       with ErrLost: the node was deleted      looks for a lost session, else for the deleter
//	ErrRevoked       with ErrLost: taken away by force       stops, and looks for the reason in the log
//	ErrSuspended     with ErrLost: StepDownOnSuspend         campaigns again
//	ErrClaimTimeout  with ErrLost: ClaimTimeout has passed   obeys the item's Context
//	ErrHeld          Lock with the ctx of its own hold       uses that hold
//	ErrUpgrade       a reader asks to become the writer      releases first
//	ErrClosed        the client was closed                   opens a new one
//	ErrEmpty         TryTake, Peek: no item is ready         waits with Take, or retries later
//	ErrFull          MaxLen and FailWhenFull                 backs off
//	ErrDuplicate     the id is already in use                uses another, or waits
//	ErrConflict      changed since it was read               reads, and decides again
//	ErrFenced        with ErrConflict: a guard's hold ended  does not write
//	ErrInDoubt       a transaction's record was destroyed    asks the other sites
//	ErrDecode        the codec refuses the data of a node    finds the program that wrote it
//	ErrKind          another kind of recipe has the path     uses another path, see "Nodes"
//	ErrUncertain     a write may have been applied           reads, before it writes again
//	ErrNotFound      there is no such node or item           decides whether to create it
//	ErrExists        a node, barrier or key is there         decides whose it is
//	ErrBadVersion    the version is not that of IfVersion    reads, and decides again
//	ErrNoChildren    an ephemeral node is at the path        uses another path
//	ErrNotEmpty      other nodes are below it                finds out whose they are
//	ErrDenied        no permission, or refused credentials   fixes ACLs, see "Nodes"
//	ErrTooLarge      over the limit of a request             stores less
//	ErrNoSpace       the service is full; deletions work     deletes, has it enlarged
//	ErrBadPath       the path is not allowed                 fixes the path
//	ErrInvalid       an argument or option makes no sense    fixes it
//	ErrUnsupported   the service lacks a feature             does without
//	ErrLimit         numbers used up, or a limit is reached  see the recipe
//
// # Nodes
//
// A path is for one recipe. A recipe that meets another kind on its path refuses with
// ErrKind before it writes. A client checks the kind at its first use of the path, and in a
// queue of contenders before each grant. The data of a recipe's directory belongs to the
// recipe, and /_coord below the namespace belongs to the library. The guide layout.md lists
// the nodes of each recipe, what may share a path, and when a path is free for another
// kind.
//
// On a service with ACLs, give all clients of one path one ACL: they must be able to read
// each other's nodes. production.md lists the permissions of each recipe. A
// *backend.DeniedError names the node that refused and the missing permission.
//
// # Traces and logs
//
// [Options].Trace gets an event for each wait, grant, loss, release and hand-over.
// [Options].Logger gets lost sessions, lost holds and failures in the background. Neither
// gets the data of users. Even if they are slow, holds end in time and calls return.
//
// The module oteltrace turns events into OpenTelemetry spans and metrics. Package status
// serves probes of liveness and readiness. Package inspect and the command cmd/coordctl
// show the recipes under a path, with their holders and waiters. Package lifecycle fits work
// under an election into errgroup, controller-runtime and fx. Package supervisor reports the
// sessions of a process to "coordctl guard", which ends them when the process has died.
package coord

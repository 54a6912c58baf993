// Package coord is coordination for Go services: the recipes of the ZooKeeper
// recipe guide, with context cancellation and channels, over a small pluggable
// backend. Package backend/zookeeper is the backend for production,
// backend/memory the one for tests and single processes.
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
// By what one wants to do:
//
//   - One at a time: [Mutex.Do]. At most so many at a time: [Semaphore].
//   - A job at regular times, once in a whole cluster; a service of which one
//     instance is active: [Election.Run], what it did in a [Value] written under the
//     Guard. (A lock taken for each run does not do: the next one gets it when the
//     first has finished.) See the example OncePerPeriod of the package, in
//     example_compose_test.go, and the program examples/singleton.
//   - Work for many workers, with retries: a [Queue]; Ack what is done, Nack what
//     failed, and set MaxAttempts. See the example Retries.
//   - Who is there, and whom to call: a [Group], its Join and its [Picker].
//   - Configuration that follows changes: [Value.Watch]; a whole tree: [Cache].
//   - Begin together, end together: [DoubleBarrier].
//   - Several writes, all or none: [Txn] on the service, [Coordinator] over
//     databases and processes.
//
// By name:
//
//   - [Mutex]: one holder at a time.
//   - [RWMutex]: one writer, or any number of readers; a writer can become a reader.
//   - [Semaphore]: a number of permits; a caller takes any number of them, all or
//     none.
//   - [LockAll]: several locks, all or none.
//   - [Mutex.Revoke], [RWMutex.Revoke]: ask the holder to give up, or make him.
//   - [Election]: one leader among candidates, and who it is.
//   - [Barrier]: hold everybody up until it is removed. [DoubleBarrier]: a number of
//     members begin together and end together, round after round.
//   - [Queue], [PriorityQueue], [DelayQueue]: work for any number of consumers, at
//     least once with Ack, at most once with Pop.
//   - [Txn]: writes that are applied all or none, under conditions and the Guard of
//     a hold.
//   - [Coordinator], [Participant]: a transaction over sites that all commit or all
//     abort; nobody waits for a dead one past its deadline.
//   - [Group]: who is there, under which name, with which address; and one of
//     them to call.
//   - [Value]: a typed configuration value that is watched.
//   - [Counter]: a number to add to, and blocks of numbers for ids.
//   - [Cache]: a live copy of a subtree, to read without a round trip.
//   - [Inspect]: what stands under a path: which recipe, who has it, who waits for
//     whom.
//
// # What is common to all
//
// NewMutex and its like do no I/O and return no error: what is wrong with a path or
// an option, the first call says. They are made of a client, which must not be nil,
// and a path, which is absolute and below the client's namespace. Options may be
// nil. The zero values of the types themselves do not work, but for a [Guard], a
// [Codec] and options. Everything is safe for concurrent use, but for building a
// [Txn]. Nothing has to be closed but the [Client], which ends all that was made of
// it; holds, and memberships of groups, are given back earlier by Release and
// Leave.
//
// # Words
//
// The service is a tree of nodes, each with data of at most about a megabyte,
// named by paths as files are. An ephemeral node goes with the session that made
// it. A sequential one gets a number behind its name that grows. A container goes
// when it has become empty. The service numbers its commits: such a number is a
// zxid, the czxid of a node that of its creation, the mzxid that of its latest
// change.
//
// A session is one life on the service. It is connected, suspended (no contact
// at the moment, it may come back) or lost (over for good). A [Client] keeps one
// session at a time and opens the next when one is lost; [Client.States] tells.
//
// A [Hold] is something that can be lost: a lock that was granted, a [Term] of
// leadership, an [Item] of a queue, an [Entry] of a double barrier. Its Done channel is closed when it ends, and its Context ends with it.
//
// A channel that tells how things stand, of states, leaders, members or values, is
// latest-wins: a slow reader misses what lies between and never the newest. It
// ends with its context; if it fails for good, its last element says why.
//
// A token is the fencing number of an exclusive hold. It grows from one holder
// to the next on one path.
//
// A [Guard] is the condition "this hold still stands", which the service checks
// in the transaction that writes something.
//
// # What is promised
//
// One holder. At most one client has a node at the head of a line, in the order
// in which the nodes were created. No reply that is lost, no request that is
// lost, no session that ends and no caller that gives up leaves a node behind
// that blocks the others, or makes two holders.
//
// Given up is gone. A call that waits for its turn, and ends without it, removes its
// node before it returns. It returns earlier if there is no contact, or no answer for
// a second. Then the removal goes on in the background, and the client's next
// acquisition on the same path waits for it first, bounded by its own ctx. So a client
// never meets a node that an earlier call of its own has left. Another client can,
// until the removal is done or the service has ended the session. (A removal that the
// service refuses is logged and tried again. Only [DoubleBarrier.Enter] waits for one;
// TryX finds the lock taken.) Close waits up to two seconds for such work, while there
// is contact.
//
// Told in time. A client declares its session lost by its own clock, before the
// service ends it: after the time of the latest request that was answered, plus
// the session timeout, less the backend's LossMargin. A lost session ends its
// holds. So a holder that is cut off is told before anybody else is granted, as
// far as this can be promised:
//
//   - A process that is paused, or whose machine is, believes in its hold while
//     it is paused. When it goes on, Err, Done and the next call tell at once.
//   - A follower of a ZooKeeper ensemble answers pings for up to syncLimit ticks
//     after it has lost its leader. To be told first even then takes a LossMargin
//     of at least (syncLimit + 2) ticks and the drift of the clocks.
//   - Who deletes the node of a holder by hand, may find the next one granted
//     before the old one is told.
//
// Exact where it must be. Where two writers at once could do harm, do not rely
// on time. Either the resource refuses a token lower than the highest it has
// seen; or what is written is a node of the same service, and is written in a
// transaction under the Guard. Both are exact, whatever is paused, cut off or
// deleted. Tokens do not survive the restoring of an older snapshot of the
// service.
//
// Waiting goes on. A session that is lost while a caller waits does not end the
// wait; the caller goes to the tail of the line with the next session. What ends
// it is ctx, Close, or a refusal: no permission, a limit that is reached. The ctx
// of an acquisition bounds the acquisition, never the hold.
//
// All this stands on a service that agrees with itself. ZooKeeper has had defects by
// which a server that is killed right after a change of leader comes back with nodes
// that the others lack, or lacks some of theirs (ZOOKEEPER-3911, 4785 and 5010 tell of
// such). With 3.8.0 it was seen in the tests of this library: whoever is connected to
// that server waits behind a node that only it has. Run a version in which they are
// mended, and let such a server begin anew without its data.
//
// Reads are sequentially consistent, as ZooKeeper's are: a client sees its own
// writes, never goes back, and can be behind others. A grant catches up: who has a
// hold, and reads through the same client, sees all that earlier holders had
// written to the service when theirs ended.
//
// # Errors
//
// All errors are found with errors.Is. Those of calls say which operation failed
// on which path (*backend.Error), those that a hold ended with name its node, and a
// transaction that is refused says which part of it is to blame ([ConflictError]).
// Where a call can meet an error in another sense than here, its comment says so.
//
//	error            what it means                           what the caller does
//	ctx's own        the wait was given up                   nothing; see "Given up is gone"
//	ErrLocked        TryX: a hold or a waiter is in the way  tries later, or waits with Lock
//	ErrLost          the hold ended before its release       stops what it does under the hold
//	ErrReleased      the hold was released                   nothing
//	ErrSessionLost   with ErrLost: no contact for too long   takes a new hold
//	ErrDeleted       with ErrLost: the node was deleted      finds out who deletes nodes
//	ErrRevoked       with ErrLost: taken away by force       stops, and asks who and why
//	ErrSuspended     with ErrLost: StepDown, and no contact  campaigns again
//	ErrHeld          Lock with the ctx of its own hold       goes on with that hold
//	ErrUpgrade       a reader asks to become the writer      releases first
//	ErrClosed        the client was closed                   opens a new one
//	ErrEmpty         TryTake, Peek: nothing is there         waits with Take, or comes back
//	ErrFull          MaxLen and FailWhenFull                 backs off
//	ErrDuplicate     the id is another's                     takes another, or waits
//	ErrConflict      changed by somebody else since          reads, and decides again
//	ErrInDoubt       a transaction's record was destroyed    asks the other sites
//	ErrDecode        the codec refuses what a node holds     finds out who wrote it
//	ErrKind          another kind of recipe has the path     takes another path, see "Nodes"
//	ErrUncertain     a write may have been applied           reads, before it writes again
//	ErrNotFound      none there; of a guard: hold ended      does not write
//	ErrExists        a node, or another barrier, is there    decides whose it is
//	ErrBadVersion    a Txn's VersionIs does not hold         reads, and decides again
//	ErrNoChildren    an ephemeral node stands at the path    takes another path
//	ErrNotEmpty      nodes of others stand below it          finds out whose they are
//	ErrDenied        no permission, or refused credentials   mends ACLs, see "Permissions"
//	ErrTooLarge      over the limit of a request             stores less
//	ErrBadPath       the path breaks backend.CheckPath       mends the path
//	ErrInvalid       an argument or option makes no sense    mends it
//	ErrUnsupported   the service lacks a feature             does without
//	ErrLimit         numbers are used up, or an option's     see the recipe
//
// Release of a hold returns nil only if the hold stood until then. It returns an
// error that matches ErrLost if the hold was lost before, even if only the removal
// of its node finds that; and ErrUncertain if the reply to the removal was lost and
// the node is gone, since nobody can tell whether another client deleted it before.
// The node is gone in both cases. Any other error is a refusal by the service; the
// removal is tried again in the background for as long as the session lives. Do
// returns the error of Release with its own.
//
// # Nodes
//
// Each recipe documents its layout. The directories of recipes, and what is
// missing above them, are made on first use as containers, which the service
// removes some time after they are empty. The data of a recipe's directory
// belongs to the recipe: it is the mark "coord recipe: " and the name of the kind. Below the client's namespace, /_coord is the library's
// own.
//
// **One path, one recipe.** A recipe that meets another kind on its path refuses with
// ErrKind, before it writes: each client looks at its first use of the path, and in a
// line before each grant. Reads of a [Value], a [Counter] and a [Barrier] refuse too.
// Calls that only look at a directory find nothing of theirs there: Leader, Observe,
// Contenders, Members, Watch of a Group, Len, Peek, State, Limit, Status and List.
//
// A path is free for another kind when its node is gone. A directory that is empty goes
// some time after, when the service collects containers: ZooKeeper looks once a minute.
// A Value, a Counter, a Barrier, path/limit of a Semaphore and path/items of a queue stay
// until they are deleted; so do the nodes below a Coordinator's path.
//
// These may share a path:
//
//	recipe               with
//	Mutex                Curator's InterProcessMutex and LeaderSelector, kazoo's Lock
//	RWMutex              Curator's InterProcessReadWriteLock
//	Election             Curator's LeaderLatch, kazoo's Election
//	Barrier              Curator's DistributedBarrier, kazoo's Barrier
//	Value, Counter       each other, where the codec writes a number
//	Cache, Inspect       everything: they only read
//	all others           none but their own kind
//
// An empty directory without a mark (of an earlier version, Curator or kazoo, while it is
// not in use) shows no kind, and the first recipe that uses it gets it. One whose data
// was written is a Value of no bytes. Data that other programs write to the node of a
// recipe in use can be lost: see [KindError].
//
// # Permissions
//
// Where nodes have ACLs, a client needs these permissions on the directories and the
// nodes of a recipe:
//
//	recipe                           permissions
//	Mutex, RWMutex, Election, Group  read, create, delete
//	  Revoke, SetValue, Announce     write
//	Cache, Inspect                   read
//	all others                       read, write, create, delete
//
// Without write on its directory, an acquisition costs one or two requests more. A
// semaphore's waiter that may not write its own node fails at once with ErrDenied: when
// it is granted it writes there, and the waiter behind it relies on that.
//
// The first client at a path creates the directories above it, and needs create on the
// lowest of those that exist. These belong to no recipe, as does /_coord/journal, in
// which all but the recipes of the first three lines create nodes. By default everyone
// may create in them, so that clients with other credentials can use paths beside; see
// ParentACL of package backend/zookeeper. A [Value], a [Counter] and a [Barrier] are
// nodes in such a directory, so to delete one takes the permission to delete there.
//
// An error that matches ErrDenied says which node refused, and which permission it does
// not grant: errors.As finds a *backend.DeniedError. The creation and the deletion of a
// node are refused by its parent.
//
// All clients of one path must be able to read each other's nodes: give them one
// ACL. ZooKeeper from 3.8.4 on does not tell a session of the deletion of a node that
// it may not read, so who stands behind such a node might wait for ever. (The first
// wait of a session in a line asks, and each wait behind a client of another make; it
// fails with ErrDenied.)
//
// # What goes on
//
// Options.Trace is called with an [Event] where an operator gains by it: where
// something waits, is granted, lost or given back, changes hands, or turns out other
// than was asked for. It costs nothing when it is nil. Package oteltrace, a module of
// its own, makes OpenTelemetry spans and metrics of the events. Options.Logger gets
// what nobody asked for: lost sessions and holds, and what the service refuses in the
// background. Neither tells what users store. [Inspect] explains a path, and
// the command cmd/coordctl does so from a shell.
//
// Both are called on goroutines of their own, and nothing waits for them: however
// slow they are, holds end in time, calls return, and what is too much for them is
// dropped and counted. So events and lines come shortly after what they tell of, in
// order. Close waits for them for a second.
//
// # Testing with fake time
//
// The memory backend works inside a testing/synctest bubble: partitions, expiry
// and waiting happen in fake time. A deadlock of the code under test shows as a
// deadlock of the bubble.
package coord

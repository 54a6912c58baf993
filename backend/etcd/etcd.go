// Package etcd is the backend for etcd servers, from version 3.4 on. It is tested with 3.6.13
// and with 3.4.23.
//
// New makes a backend.Backend from a list of servers. Each session makes its calls on a gRPC
// connection of its own, to one server at a time. gRPC and etcd's client repeat requests and
// reconnect by themselves; here each connection is made once, and the session decides what is
// repeated.
//
// # Sessions
//
// A session is a lease and a key that belongs to the lease. The version of this key is the
// epoch of the session. Commits compare it, so the servers refuse a commit of a session
// that has ended, even if the request was on its way for long. After a commit of unknown
// outcome the session begins a new epoch before its next call. Then the commit either has been
// applied, or every server refuses it. If only the caller has given up, the next call of the session waits
// for the reply to the commit, and begins an epoch if that is late.
//
// One commit compares nothing: the deletion, alone, of an ephemeral node of the session itself that
// has a sequence number, as in the release of a lock. Only this session can give its key to another node,
// and does so only after the answer to each such request. So the request can be sent again when it has no
// answer, and when it arrives late it does nothing. If its caller gives up first, the next call of the
// session deletes the key in the transaction that begins the new epoch, and no node gets it again.
//
// The lease is counted from the moment at which the latest answered keep-alive was sent. Other
// requests renew nothing. A keep-alive is sent every eighth of the timeout. A server that
// leaves one without an answer for half the lease is given up for another one. So is a server that leaves
// a request without an answer for so long, or that does not prove its watch stream: see Watches. If each
// server in turn leaves reads, or each leaves commits, without an answer, the session is lost. Time is
// measured by the monotonic clock and the wall clock, and the larger value counts: the
// monotonic clock stops while a machine is suspended. Therefore a wall clock that is set
// forward by more than the lease ends the session.
//
// The servers end a lease by the clock of their leader, at the earliest after the granted
// timeout. A new leader starts the timeout of every lease again. A leader that was stopped for a while
// and has lost its office can answer keep-alives that renew nothing, and it can revoke leases that were
// renewed at the new leader (issue 15247 of etcd). Then a session ends early: its nodes are deleted
// while the client trusts its lease, until the event of this reaches it. Fencing tokens and guards hold
// all the same, since every guarded commit compares nodes on the servers. From versions 3.4.31 and
// 3.5.13 on a leader that has not run for a while proves its office before it revokes leases, and from
// 3.6 on before it renews them. That makes early ends rare, and does not exclude them: a leader whose
// whole process was paused (SIGSTOP, a virtual machine that is frozen) can take itself for active when
// it resumes. In tests with 3.6.13 such a leader ended sessions whose timeout was shorter than its pause
// in a third of the pauses, and never sessions whose timeout was longer. So choose a SessionTimeout
// that is longer than the pauses that you expect of servers.
//
// When a session was lost, its lease can live on at the servers for a while, and a commit that was under
// way can be applied until it ends. The next Open of the same Backend revokes that lease first. So when
// Open returns, the nodes of the lost session are deleted, and none of its commits is applied any more.
//
// # Another history
//
// A session is lost when the service has another history than it knows: after the restoration of a backup,
// or at another cluster. It compares the cluster and the revision of each reply with what it has seen, and on
// each new connection the latest changes that it has seen with the keys as they were then. It cannot do the latter
// if these revisions are compacted, and if then the revisions of the restored service have passed its own before it
// connects, the session may continue. Open refuses endpoints of several clusters with backend.ErrInvalid: for
// that the first Open of a Backend also connects to the other endpoints, and waits half a second for them.
//
// # Servers in trouble
//
// A name is looked up each time that a session needs a connection, and each of its addresses is a
// server of its own. While an attempt is silent the next one begins beside it: after 250 ms at
// another address if there is no connection, after a second if the server has accepted one, and
// sooner when the lease is short. The session uses the first server that answers and has a leader.
// Open gives up for a certificate only when the latest attempt at every address failed for one. It
// gives up at once when a server refuses the user, since all servers would.
//
// A paused leader: the others elect a new leader within two election timeouts, and calls that begin
// then succeed. Commits that were under way, at whichever server, are uncertain: they wait until the
// server gives up, after five seconds and two election timeouts, or until the session leaves it after
// half the lease.
//
// A black hole (packets vanish, and no connection is reset): a session leaves the server when a
// keep-alive has had no answer for half the lease, and its commits that were under way are uncertain. If
// all servers are behind the black hole, the session is lost when its lease has passed, before the servers
// delete its nodes.
//
// A full disk of one server: etcd ends the process of this server. Sessions continue at the others. Once
// there is room, start it again. If no majority has room, there is no service: calls wait, and sessions are
// lost when their leases have passed. A full database is something else; see below.
//
// A user who loses the permission to write the keys with the prefix loses its sessions: a server renews
// a lease only for a user who may write all keys of the lease. Calls fail with backend.ErrDenied, and the
// session is lost when its lease has passed. (It lasts if all keys are left to
// it but some that it has just deleted. If the reply to such a deletion was lost, its calls are denied.)
//
// # Reads and commits
//
// Reads are linearizable, so a session is never behind others. Each read of a node is one
// request, and each commit is one transaction. Its compares test what the session assumes of
// the nodes: from what it has seen of them, or the usual. If they fail, the same answer has
// the nodes as they are. They show which operation to blame, or what the next try must assume.
// A write of a node that the session has not seen, or that has been replaced by another one,
// is preceded by a read.
//
// A sequence number is 128 times the revision of the commit, plus the place of the node in it.
// So the numbers grow, with gaps, in all directories together, and concurrent creations do not
// conflict. They have more than ten digits once the servers have seen some 78 million commits.
// The name of a node that was created without a number can look as if it had the number of a
// later revision. Do not create such names in directories of sequential nodes: if the revision
// comes, a sequential node can get the same name.
//
// A commit takes up to 63 operations, since servers take 128 compares and 128 operations in
// one transaction (--max-txn-ops); do not set that lower. A request takes up to 1 MB of paths
// and data, as in all backends; servers take 1.5 MiB (--max-request-bytes). A path is in a request
// up to five times, so a commit with more than some 250 kB of paths can fail with
// backend.ErrTooLarge. So can Arm for the children of a node whose path is that long, and any read
// of a path of more than some 600 kB. The creation of a sequential node counts the children of the parent, for which
// a server visits each of them in its index, and also the keys that were deleted since the latest compaction. A session
// uses the keys of its ephemeral sequential nodes again, such as those of a lock. But where other nodes
// come and go in one directory, such as the items of a queue, let the servers compact every few minutes
// or every few thousand revisions (--auto-compaction-mode, --auto-compaction-retention).
//
// When the database of the servers has reached its quota, commits fail with backend.ErrNoSpace, except those that only
// check and delete, and Open waits until its ctx ends. Reads continue. A server that finds the quota
// exceeded only when it applies a commit reports the same error, and has applied the commit. So the
// session reads after that error whether the nodes have changed: the error is definite if they
// have not, and uncertain otherwise. If contact breaks during a commit while there is no space, the
// next calls of the session fail until there is space, since a new epoch is a write.
//
// # Watches
//
// A watch has a watcher on the server for its node, and another one for the children if it is
// for these and the node is not ephemeral. It is made in parallel with the read. Watches of one node
// share their watchers. A watcher that nothing uses any more is canceled.
//
// Watches fire in the order of the commits. From versions 3.4.25 and 3.5.8 on servers can
// prove that no event is missing; while a proof is due, an event waits for one round trip.
// With earlier servers an event can come up to a tenth of a second late, also after a read
// that shows the change, if its watch was armed while another client committed. There a Sync
// writes the session's key and waits for that event, which does not prove that no other one is
// late. So the contract's order of events among themselves and before reads does not hold for
// certain there: with 3.4.23 a watch fires now and then after a read has shown the change, or after
// the watch of a later change. That is etcd #15220: no reply of these servers shows that a new
// watcher has caught up. Use a newer version.
//
// One case is left with all versions: a member that was away for so long that it is brought up to
// date by a snapshot, and for less than half the lease, so that its clients stay. For a moment
// it sends the events of its watchers in any order, and nothing shows that.
//
// A server that answers other requests, but for half the lease keeps events back that a read waits
// for, or does not show the order of events that it has sent, is given up for another one. While watches
// are in use, the session asks for a proof of the stream six times in a lease, and gives a server up that has
// given none for half the lease. Earlier servers than those above prove it by the event of a write of the
// session's key. etcd's gRPC
// proxy answers no requests for that (its log says "not supported request type"), so give the addresses
// of the members.
//
// When a server ends a connection in good order (GOAWAY), as proxies do at intervals, the session makes the
// next one first: its calls are answered on the old one, and its watches continue. Watches fire with
// backend.LookAgain after contact broke. So do they, and tree watches are
// over, when the servers have compacted what a watcher that lags behind still needs: the
// connection is given up then. Compaction does not matter otherwise.
//
// Arm compares the children of a node with those of the commit since by their number and by their
// positions. So it does not notice a child that was created and deleted again in between. It takes new
// data of four children in between for a change of the children.
//
// # Containers
//
// The servers of etcd remove no empty nodes; the sessions of clients do. The session that deletes the last child of a container
// looks at it after Options.ContainerInterval, and removes it if it is empty. If other clients use it
// meanwhile, it stays. Containers that have become empty otherwise, such as by the end of the session that had the
// last child, or of that which would have looked, are found by a search. Each session tries once in ten intervals, at
// random times, and one at a time makes it; it costs a request for each 32 containers. It also removes containers
// that were never used. If the service refuses the removal of a container, for a missing permission or a path
// of more than some 250 kB, the session logs the first one, and the next search tries it again. A container is
// never removed with a child, or after a write that the
// search has not seen. While no client has a session, nothing is removed.
//
// Clients of versions that did not know containers take them for persistent nodes. They find that a directory is missing
// as they find that an operator has deleted one, and make it again, as a persistent node. A container becomes a
// persistent node when they write its data. They remove none.
//
// # What etcd does not have
//
// The session has the features backend.Trees, backend.Batches and backend.Containers, but not
// backend.Clock. Times are those of the clock of the client that wrote.
// Pzxid and Cversion of a Stat are zero. There are no permissions of single nodes, so
// backend.Op.Shared means nothing. etcd gives permissions by ranges of keys: use another
// Options.Prefix for clients that must be kept apart, and give their user the permission to
// read and to write all keys with that prefix. Watches of a state between two operations of
// one commit do not fire.
//
// # Security
//
// A lease has no owner: every user whom etcd lets in can keep alive or revoke leases whose
// id it knows, unless it may not write a key of the lease. So use TLS with client
// certificates, or users with passwords, and a prefix for each group of clients that trust
// each other.
//
// # Keys
//
// All keys begin with Options.Prefix. A node is one key, whose name has the path of its parent
// and, behind two slashes, its own name, and whose value is a header and the data. Do not
// write to these keys with other programs. To remove everything, end all clients and delete
// the keys with the prefix.
package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
	"github.com/go-coord/coord/internal/outbox"
)

const (
	defaultPort   = "2379"
	defaultPrefix = "coord"
)

// Options are the settings of a backend. The zero value of a field means its default, and so
// does a nil *Options. New copies them.
type Options struct {
	// SessionTimeout is the timeout to ask for; zero means 10 s. It is the TTL of the session's
	// lease, in whole seconds: a part of a second counts as one. The servers grant at least one
	// and a half times their election timeout; Session.Timeout returns what they granted.
	SessionTimeout time.Duration

	// LossMargin is how long before the end of the granted timeout a session whose renewals are
	// not answered declares itself lost. It must be shorter than that timeout. Zero means a
	// third of it.
	LossMargin time.Duration

	// TLS, if it is not nil, makes the connections use TLS. An empty ServerName means the
	// host name in the server's address. If a function of it that verifies or chooses a certificate
	// panics, the attempt to connect fails, as with Dial.
	TLS *tls.Config

	// Username and Password are those of a user of etcd. While authentication is switched off they
	// are not used, so clients can have them before it is switched on. Without them calls fail with
	// backend.ErrDenied while it is on. The password appears in no log and no
	// error. The user needs the permission to read and to write all keys that begin with Prefix.
	// Where tokens have a fixed time to live (JWT), contact breaks for a moment each time that one
	// has ended.
	Username string
	Password string

	// Prefix is what the keys of this backend begin with; empty means "coord". Backends with
	// other prefixes have trees of their own, unless one of two prefixes continues the other
	// with "/" or ":". Nothing else may write to these keys.
	Prefix string

	// ContainerInterval is how long a container stays after its last child was deleted; zero means a
	// minute. The sessions of all backends with the same Prefix remove containers; see "Containers". If it
	// is negative, the sessions of this backend do not. Less than 10 ms counts as 10 ms, and more than a year as a year.
	ContainerInterval time.Duration

	// OpenWithoutSpace makes Open succeed while the database of the servers has reached its quota, when no lease can be
	// granted. The session then has no lease. It reads, and commits what only deletes (backend.OnlyDeletes), and
	// refuses all other commits with backend.ErrNoSpace, also when there is space again: open another one then. It has no
	// nodes of its own, so no process can see that it has ended, and nothing can end it. While the
	// servers have space, Open gives an ordinary session.
	//
	// Without a lease there is no epoch either, so the outcome of a commit whose reply is lost stays unknown:
	// the session is over then (backend.ErrSessionLost), and the deletion may still happen, also after the next Open.
	// It deletes nothing but nodes that are still as the commit has read them. This is for tools that free space; a
	// service needs a session with a lease.
	OpenWithoutSpace bool

	// Without switches off backend.Trees, backend.Batches or backend.Containers.
	Without backend.Features

	// Logger gets the log lines about the connections of a session: each connection that is
	// made (Info), and each that breaks, with the server and the reason (Warn). While no server
	// can be reached there is a line with the address and the error of each, when all have been
	// tried and then at intervals that grow from a second to a minute (Warn). The loss of a
	// session is logged by its user: see Logger of coord.Options. Nil means no logging.
	//
	// It is called on a goroutine of its own, one line at a time and in order for each session.
	// Nothing waits for it, except that the session's Close waits up to a second for the last
	// lines. When it is so slow that many thousand lines wait, further lines are dropped; a later
	// line reports how many.
	Logger *slog.Logger

	// Reporter, if it is not nil, learns of each session before the session can hold anything, and of its end. With
	// package supervisor and coordctl guard, the sessions of a process that dies end at once.
	Reporter backend.Reporter

	// Dial makes the connections, before TLS. It is called with network "tcp" and the address
	// as it was given to New, by several goroutines at a time. It must return soon after ctx
	// ends. If it panics or ends its goroutine, the attempt fails, and the Logger gets the stack.
	// The methods of its connections are not protected: a panic in one ends the program. Nil means
	// the DialContext of a net.Dialer. Then the names of servers are looked up for
	// each connection, and each address of a name is tried as a server of its own. A user's
	// function gets the name, and has to choose among its addresses itself.
	//
	// A connection that wraps a *net.TCPConn should have its method SetLinger(int) error. It
	// is called with 0 before a broken connection is closed, so that the operating system drops
	// what was not sent.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// String formats the options without the password.
func (o Options) String() string {
	if o.Password != "" {
		o.Password = "…"
	}
	type plain Options // without these methods
	return fmt.Sprintf("%+v", plain(o))
}

// GoString formats the options without the password.
func (o Options) GoString() string { return "etcd.Options" + o.String() }

// New returns a backend for the cluster of these servers, each given as host, host:port (default
// 2379), or as a URL of them with the scheme http or https; an element can also be a list of them
// with commas. It does no I/O. Open reports invalid
// servers and options (backend.ErrInvalid). The order in which the servers are tried is shuffled
// for each session.
func New(endpoints []string, o *Options) backend.Backend {
	cfg, err := newConfig(endpoints, o)
	return &service{cfg: cfg, err: err}
}

type service struct {
	cfg *config
	err error // why cfg is invalid
}

// config holds the checked arguments of New. It is not changed afterwards.
type config struct {
	servers  []string
	times    contact.Times // with a timeout of whole seconds
	tls      *tls.Config
	user     string
	password func() string // a function, so that printing the config cannot show it
	prefix   string
	has      backend.Features
	interval time.Duration // of containers; not positive: the sessions remove none
	bare     bool          // Options.OpenWithoutSpace
	logger   *slog.Logger  // nil: silence
	dial     func(ctx context.Context, network, address string) (net.Conn, error)
	lookup   contact.Lookup                // nil with Options.Dial
	clock    func() func() contact.Instant // replaced by tests
	lost     contact.Lost
	reports  *contact.Reports
	clusters clusters
}

func newConfig(endpoints []string, o *Options) (*config, error) {
	if o == nil {
		o = new(Options)
	}
	times, err := contact.CheckTimes(o.SessionTimeout, o.LossMargin, 24*365*time.Hour)
	if err != nil {
		return nil, err
	}
	times.Timeout = (times.Timeout + time.Second - 1).Truncate(time.Second)
	password := o.Password
	user := contact.NewUser(outbox.NewLogger(o.Logger))
	cfg := &config{
		times:    times,
		tls:      user.TLS(o.TLS),
		user:     o.Username,
		password: func() string { return password },
		prefix:   o.Prefix,
		has:      (backend.Trees | backend.Batches | backend.Containers) &^ o.Without,
		interval: min(cmp.Or(o.ContainerInterval, defaultInterval), mostInterval),
		bare:     o.OpenWithoutSpace,
		logger:   o.Logger,
		dial:     user.Dial(o.Dial),
		clock:    contact.Clock,
		reports:  user.Reports(o.Reporter, "etcd"),
	}
	if cfg.interval > 0 {
		cfg.interval = max(cfg.interval, leastInterval)
	}
	if !cfg.has.Has(backend.Containers) {
		cfg.interval = 0
	}
	if cfg.prefix == "" {
		cfg.prefix = defaultPrefix
	}
	if cfg.dial == nil {
		cfg.dial, cfg.lookup = new(net.Dialer).DialContext, contact.LookupWith(nil)
	}
	switch {
	case o.Username == "" && o.Password != "":
		return nil, contact.Invalid("Password without Username")
	case strings.IndexFunc(cfg.prefix, func(r rune) bool { return r < ' ' }) >= 0:
		return nil, contact.Invalid("Prefix %q has a control character", cfg.prefix)
	}
	servers := contact.Split(endpoints)
	for i, endpoint := range servers {
		if servers[i], err = cfg.server(endpoint); err != nil {
			return nil, err
		}
	}
	if cfg.servers, err = contact.Addresses(servers, defaultPort, "endpoint"); err != nil {
		return nil, err
	}
	return cfg, nil
}

// server returns an endpoint without its scheme.
func (c *config) server(endpoint string) (string, error) {
	scheme, rest, ok := strings.Cut(endpoint, "://")
	switch {
	case !ok:
		return endpoint, nil
	case scheme != "http" && scheme != "https":
		return "", contact.Invalid("endpoint %q: write host:port, or a URL with http or https", endpoint)
	case (scheme == "https") != (c.tls != nil):
		return "", contact.Invalid("endpoint %q: use https with Options.TLS, and http without", endpoint)
	}
	return strings.TrimSuffix(rest, "/"), nil
}

var (
	errRevoked = fmt.Errorf("%w: the session has expired on the servers, or was revoked", backend.ErrSessionLost)
	errBroken  = errors.New("etcd: the connection is broken")
	errNoUser  = fmt.Errorf("%w: the servers require authentication, set Options.Username", backend.ErrDenied)
)

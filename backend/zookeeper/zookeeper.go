// Package zookeeper is the backend for ZooKeeper servers. It needs version 3.5.3 or later,
// for containers, and is tested with 3.8 only.
//
// New makes a backend.Backend from a list of servers. Each session makes its calls on a
// connection of its own, in ZooKeeper's protocol. The client github.com/go-zookeeper/zk
// (below: the zk client), which does not appear in the API, keeps that connection: it decides
// when to dial, makes the handshake, sends the pings and closes the session. It sees neither
// calls nor events. A third of its statements run: 357 of 1,049 of v1.0.4 when the tests of the
// contract run.
//
// A session and its zk client are never used for another session. When the servers have ended
// a session, or its lease has passed, the session is lost for good: its connection is closed,
// no other is made, and the calls in its queue are not sent.
//
// # Servers
//
// A name is looked up each time that a session needs a connection, and each of its addresses is a
// server of its own. While an attempt is silent the next one begins beside it: after 250 ms at
// another address if there is no connection, after a second if the server has accepted one, and
// sooner when the lease is short. The session uses a connection whose handshake was answered. Of
// several handshakes for a session that exists it uses the one that was begun last, because the
// servers move the session to it. If several servers have made a new session, the others are closed.
// An address that failed is tried after the others. If a name cannot be looked up, its addresses of
// before are tried.
//
// # Calls
//
// A call waits in the session's queue until there is contact. Then it is written in its turn,
// together with the calls that wait at the same moment. A call that is alone writes its request
// itself, as far as that does not block. So no call lasts longer than its context. The server answers in the same order.
// So the calls of a session reach the service in the order in which they were made, even if a
// caller gives up: a request is written in its turn, or never.
//
// # The lease
//
// The lease of a session is the send time of the latest request that was answered, plus the
// negotiated timeout, less Options.LossMargin. Answers to pings count, watch events do not.
// Time is measured by the monotonic clock and the wall clock, and the larger value counts:
// the monotonic clock stops while a machine is suspended. Therefore a wall clock that is set
// forward by more than the lease ends the session.
//
// Contact counts as broken when a server has been silent for half the lease. The other half
// is for the other servers, or for the same one to come back.
//
// An answer that says that the session has ended loses it at once, in the header of a reply and in
// the reply to each part of a Commit. The Commit was not applied. The session does not wait for the
// server to close the connection: a follower can continue answering pings of a session that is over.
// If an answer says that the session has moved, the session continues on another connection. It does
// so, too, if a server answers pings and leaves a call unanswered for half the lease.
//
// A follower that lost its leader continues answering for up to syncLimit ticks. If a session
// has to learn of its loss before another client can acquire the locks that it held,
// LossMargin must cover that time and the drift of the clocks.
//
// # Another history
//
// A session is lost when the service has another history than it knows, as after the restoration of a
// backup. On each new connection, before it is used, the session looks for what it has seen: the nodes of
// its latest creation or change, of its latest deletion, and of the latest change that Get, Exists or
// Children has returned. That takes one round trip. Servers that are behind what the session has seen close
// its connections without an answer. When all have done so, the session opens another one for a moment,
// makes a commit that changes nothing, and compares its zxid with what it has seen.
//
// This is not exact. If the zxids of the restored service have passed those of the session before it
// connects, and other clients have changed those nodes and the directories above them, nothing shows that
// the history is another one, and the session continues. The same holds for a session that has neither changed nor
// read a node. The ephemeral nodes of the lost session that the backup has stay until the service
// ends that session, after its timeout.
//
// # Watches
//
// The watches of a session fire with backend.LookAgain when contact is back on a new
// connection; no watch fires while the session is suspended. Servers have no request to
// cancel one watch of several, so the server's side of a stopped watch stays until it fires or
// the connection ends. The client's side is removed at once, and stopped watches of one node
// share one watch on the server.
//
// Arm sends the request setWatches, with which other clients re-arm their watches on a new
// connection. If a server refuses it, Arm reads one node after the other. It also does so if
// the session watches a tree whose top is a target for data.
//
// A tree watch is a persistent recursive watch of the server, which needs version 3.6. All
// tree watches of a session at one path share it. It is removed when the last one is stopped
// and no watch of a read is armed at that path. Before version 3.9 servers report no zxids of
// changes. While a session watches a tree, a watch for the children of its top that was armed
// before can miss children that the session may not read.
//
// Servers from 3.8.4 on, and earlier ones of some distributions, check the permission to read
// when a watch fires (the fix of CVE-2024-23944). Exists and Arm need no permission. So their
// watches stay silent, until the next connection, when a node that this session may not read
// is created, changed or deleted.
//
// # Optional requests
//
// ReadMany and WatchTree need version 3.6. The first session of a backend, which holds nothing
// yet, asks whether the servers know their requests, because older servers close the
// connection for an unknown one. If a session comes to an older server later, that costs it
// one connection.
//
// One request reads at most 64 nodes, and as many as fill a reply of 1 MiB if they are like
// those that the session has read before, at first 16. A reply of more than 64 MiB is skipped
// and requested in parts. A read of a single node with such a reply, also by Get or Children,
// fails with ErrTooLarge. A longer reply of another kind than it can be, and an event of more than
// 1 MiB, end the connection.
//
// # Load and limits
//
// An overloaded server can be configured to answer requests without running them
// (zookeeper.throttled_op_wait_time). Such a request, including a Commit, is sent again after
// a pause that grows from 4 ms to 1 s, one of them of a session at a time, until ctx ends or the
// session is over; nothing was applied then. A Commit that may have been applied is never sent again. A Commit whose call
// gives up before its request was written is never sent, and its error is definite.
//
// A reply can take as long as the lease if its bytes keep arriving. A longer one loses the
// session. A read fails with backend.ErrUnsupported if a server answers it with a code that
// is not known for reads.
//
// Servers drop the connection for a request that is longer than their jute.maxbuffer.
// backend.MaxRequest assumes their default of 1 MiB. If it is set smaller, the first longer Commit of
// a backend is uncertain, and breaks the other calls under way on the connection. Before the session
// connects again, it measures what that server reads, on some twenty connections of their own that
// create no session. Longer calls fail with ErrTooLarge from then on, before anything is sent, and
// Limits of later sessions tells it. The limit is measured again before further connections, and
// forgotten when that server reads 1 MiB. If the server reads the request, and the connection breaks three
// times in a row with a request of that length under way and none longer, the session sends none of that
// length any more: the leader may have another limit than the server. A session
// whose connection breaks again and again within a second, or a tenth of its timeout if that
// is more, waits longer and longer before it connects, up to a tenth of its timeout or 2 s,
// whichever is less.
//
// # Security
//
// A server derives the password of a session from its id, and any client can read the owner
// of an ephemeral node. So any client that can connect can end other sessions. Use TLS with
// client certificates, or keep the servers in a network of their own.
package zookeeper

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
	"github.com/go-coord/coord/internal/outbox"
)

const (
	defaultPort = "2181"
	serviceName = "zookeeper" // in a backend.Ticket
)

// Options are the settings of a backend. The zero value of a field means its default, and so
// does a nil *Options. New copies them.
type Options struct {
	// SessionTimeout is the timeout to ask for; zero means 10 s. The servers grant a value
	// within their limits, by default 2 and 20 times their tickTime; Session.Timeout returns
	// it.
	SessionTimeout time.Duration

	// LossMargin is how long before the end of the negotiated timeout a session without
	// answers declares itself lost. It must be shorter than that timeout. Zero means a third
	// of it.
	LossMargin time.Duration

	// TLS, if it is not nil, makes the connections use TLS. An empty ServerName means the
	// host name in the server's address. If a function of it that verifies or chooses a certificate
	// panics, the attempt to connect fails, as with Dial.
	TLS *tls.Config

	// Digest is "user:password" for ZooKeeper's digest scheme. It appears in no log and no
	// error. ZooKeeper accepts any digest; a wrong one shows as ErrDenied of later calls.
	Digest string

	// ACL is the ACL of each node that is created. The default is all permissions for
	// everyone or, with Digest, all permissions for its user only.
	ACL []ACL

	// ParentACL replaces ACL on the directories above recipes, which belong to no recipe and
	// are created by the first client that needs them (backend.Op.Shared). The default is ACL
	// plus, for everyone, the permissions to read and to create. So clients with other
	// credentials can use neighbouring paths, but can neither delete nor change the nodes
	// that this client creates. They also cannot delete their own nodes directly in such a
	// directory, such as a Value or a Barrier: that takes PermDelete here. Existing nodes
	// keep their ACL. To exclude all other clients, set it to ACL, or to {"auth", "",
	// PermAll} with Digest alone.
	ParentACL []ACL

	// Without switches off backend.Trees or backend.Batches. The first session of a backend
	// finds out whether the servers have them, but not whether they implement them well: some
	// servers that are not ZooKeeper name the wrong node in the events of a tree.
	Without backend.Features

	// Logger gets the log lines about the connections of a session: each connection that is
	// made (Info), each that breaks, with the server and the reason (Warn), and the lines of
	// the zk client (Debug). While no server can be reached there is a line with the address
	// and the error of each, when all have been tried and then at intervals that grow from a
	// second to a minute (Warn). The loss of a session is logged by its user: see Logger of
	// coord.Options. Nil means no logging.
	//
	// It is called on a goroutine of its own, one line at a time and in order for each
	// session. Nothing waits for it, except that the session's Close waits up to a second for
	// the last lines. When it is so slow that many thousand lines wait, further lines are
	// dropped; a later line reports how many.
	Logger *slog.Logger

	// Reporter, if it is not nil, learns of each session before the session can hold anything, and of its end. With
	// package supervisor and coordctl guard, the sessions of a process that dies end at once.
	Reporter backend.Reporter

	// Dial makes the connections, before TLS. It is called with network "tcp" and the address
	// as it was given to New, by several goroutines at a time. It must return soon after ctx
	// ends. If it panics or ends its goroutine, the attempt fails, and the Logger gets the stack.
	// The methods of its connections are not protected: a panic in one ends the program. Nil means
	// the DialContext of a net.Dialer. Then the names of servers are looked up
	// for each connection, and each address of a name is tried as a server of its own. A
	// user's function gets the name, and has to choose among its addresses itself.
	//
	// A connection that wraps a *net.TCPConn should have its method SetLinger(int) error. It
	// is called with 0 before a broken connection is closed. Without it the operating system
	// continues sending the written bytes for minutes, and a request of a lost session can
	// still reach a server when the network is back.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// String formats the options without the password.
func (o Options) String() string {
	if o.Digest != "" {
		user, _, _ := strings.Cut(o.Digest, ":")
		if len(user) == len(o.Digest) {
			user = "" // not of its form: it may be the password alone
		}
		o.Digest = user + ":…"
	}
	type plain Options // without these methods
	return fmt.Sprintf("%+v", plain(o))
}

// GoString formats the options without the password.
func (o Options) GoString() string { return "zookeeper.Options" + o.String() }

// Perm is a set of permissions on a node.
type Perm int32

// The permissions of ZooKeeper. PermCreate and PermDelete apply to the children of the node.
const (
	PermRead Perm = 1 << iota
	PermWrite
	PermCreate
	PermDelete
	PermAdmin
	PermAll = PermRead | PermWrite | PermCreate | PermDelete | PermAdmin
)

// ACL grants permissions on a node to an identity: {"world", "anyone", …} means all clients,
// {"auth", "", …} the identities of the creating session. Other schemes have their own ids,
// such as "ip" and "10.0.0.0/8".
type ACL struct {
	Scheme string
	ID     string
	Perms  Perm
}

// New returns a backend for the ensemble of these servers, each given as host or host:port
// (default 2181); an element can also be a list of them with commas. It does no I/O. Open
// reports invalid servers and options (backend.ErrInvalid), such as a path after a server (a
// chroot of other clients): use Namespace of coord.Options. The order in which the servers are tried is shuffled for each
// session.
func New(servers []string, o *Options) backend.Backend {
	cfg, err := newConfig(servers, o)
	return &service{cfg: cfg, err: err}
}

type service struct {
	cfg *config
	err error // why cfg is invalid
}

// config holds the checked arguments of New. It is not changed afterwards.
type config struct {
	servers []string
	times   contact.Times
	tls     *tls.Config
	digest  func() string // nil: none; a function, so that printing the config cannot show it
	acl     acl
	logger  *slog.Logger // nil: silence
	dial    func(ctx context.Context, network, address string) (net.Conn, error)

	parentACL acl // of directories above recipes

	without   backend.Features
	abilities *abilities
	reports   *contact.Reports

	frameLimit *atomic.Int64 // the longest frame that the servers read, if it is known to be less than the default

	// Replaced by tests.
	clock    func() func() instant
	resolver *net.Resolver
}

func newConfig(servers []string, o *Options) (*config, error) {
	if o == nil {
		o = new(Options)
	}
	times, err := contact.CheckTimes(o.SessionTimeout, o.LossMargin, math.MaxInt32*time.Millisecond)
	if err != nil {
		return nil, err
	}
	user := contact.NewUser(outbox.NewLogger(o.Logger))
	cfg := &config{
		times:   times,
		tls:     user.TLS(o.TLS),
		logger:  o.Logger,
		dial:    user.Dial(o.Dial),
		clock:   contact.Clock,
		without: o.Without,

		abilities: &abilities{known: o.Without.Has(optional)},
		reports:   user.Reports(o.Reporter, serviceName),

		frameLimit: new(atomic.Int64),
	}
	if o.Digest != "" {
		digest := o.Digest
		cfg.digest = func() string { return digest }
	}
	if user, _, ok := strings.Cut(o.Digest, ":"); o.Digest != "" && (!ok || user == "") {
		return nil, contact.Invalid("Digest is not of the form user:password")
	}
	if cfg.servers, err = contact.Addresses(servers, defaultPort, "server"); err != nil {
		return nil, err
	}
	own, parent := o.ACL, o.ParentACL
	if err := checkACL("ACL", own); err != nil {
		return nil, err
	}
	if err := checkACL("ParentACL", parent); err != nil {
		return nil, err
	}
	switch {
	case len(own) > 0:
	case o.Digest != "":
		own = []ACL{{"auth", "", PermAll}}
	default:
		own = []ACL{{"world", "anyone", PermAll}}
	}
	if len(parent) == 0 {
		parent = append([]ACL{{"world", "anyone", PermRead | PermCreate}}, own...)
	}
	cfg.acl, cfg.parentACL = encodeACL(own), encodeACL(parent)
	return cfg, nil
}

func checkACL(option string, entries []ACL) error {
	for i, a := range entries {
		if a.Scheme == "" || a.Perms <= 0 || a.Perms > PermAll {
			return contact.Invalid("%s entry %d: scheme %q and permissions %#x, want a scheme and known permissions", option, i, a.Scheme, a.Perms)
		}
	}
	return nil
}

// aclOf returns the ACL of a new node.
func (c *config) aclOf(shared bool) acl {
	if shared {
		return c.parentACL
	}
	return c.acl
}

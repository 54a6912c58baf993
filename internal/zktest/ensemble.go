// Package zktest starts real ZooKeeper servers on the loopback interface, with free ports and
// temporary directories, and stops them: one server or an ensemble of three, whose members can be
// killed, paused and restarted one by one. Tests use Run or Shared; programs use Start.
//
// It needs Java and ZooKeeper's jars, see Find. Tests that need them are skipped when they are
// missing, or fail with COORD_REQUIRE_ZK=1.
//
// The servers are children of this process. On Linux the kernel kills them however this process
// ends; elsewhere Close has to run.
//
// Its own tests show that servers start, keep their data through a kill, change their leader,
// serve TLS, and leave no process and no file: go test ./internal/zktest.
package zktest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Options select the servers to start. The zero value is one server.
type Options struct {
	// Servers is 1 (the default; a standalone server) or 3.
	Servers int
	// TickTime is ZooKeeper's unit of time: by default session timeouts are
	// negotiated between 2 and 20 ticks, and sessions expire at the end of a
	// tick. Default 500 ms.
	TickTime time.Duration
	// InitLimit is the time in ticks for a follower to connect to its leader
	// and to catch up. Default 20.
	InitLimit int
	// SyncLimit is the time in ticks after which a follower without contact to
	// its leader gives up. Default 5.
	SyncLimit int
	// MaxClientCnxns is the limit of connections from one address. Default 0:
	// no limit (ZooKeeper's own default is 60).
	MaxClientCnxns int
	// MaxSessionTimeout is the largest timeout a client can have. Default 20
	// ticks, as ZooKeeper's.
	MaxSessionTimeout time.Duration
	// ForceSync makes every commit wait for the disk. Without it the servers
	// are much faster, and still lose nothing when only they are killed.
	ForceSync bool
	// TLS adds a port with TLS to every server. The plain port stays.
	TLS *TLSOptions
	// Config holds further settings of zoo.cfg, which override the defaults. It must not set
	// the ports.
	Config map[string]string
	// JavaArgs are further arguments of the JVM, for settings that zoo.cfg does not support:
	// "-Dznode.container.checkIntervalMs=500".
	JavaArgs []string
	// DataDir, if it is set, returns the data directory of the server with a number (from 1),
	// for instance on a small file system. "" means the default. It is created if missing,
	// and neither Close nor Start removes it.
	DataDir func(id int) string
	// Env, if it is set, returns variables to add to the environment of the server with a
	// number.
	Env func(id int) []string
	// Dir is the place of configuration, data and logs, with one directory for each server.
	// It is created if missing, must be empty, and is kept. Default: a temporary directory
	// that Close removes.
	Dir string
}

func (o *Options) withDefaults() (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	setDefault(&r.Servers, 1)
	setDefault(&r.TickTime, 500*time.Millisecond)
	setDefault(&r.InitLimit, 20)
	setDefault(&r.SyncLimit, 5)
	if r.Servers != 1 && r.Servers != 3 {
		return r, fmt.Errorf("zktest: %d servers, want 1 or 3", r.Servers)
	}
	if r.TickTime < time.Millisecond || r.InitLimit < 1 || r.SyncLimit < 1 || r.MaxClientCnxns < 0 || r.MaxSessionTimeout < 0 {
		return r, errors.New("zktest: a limit is out of range")
	}
	return r, nil
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// startLimit bounds Start and Await if ctx does not.
const startLimit = 90 * time.Second

var errClosed = errors.New("zktest: ensemble closed")

// An Ensemble is a set of servers that belong together. Its methods are safe
// for concurrent use.
type Ensemble struct {
	servers []*Server
	dir     string
	keep    bool // dir stays after Close

	starting sync.RWMutex // held for reading while a server starts
	closed   bool         // guarded by starting: no server starts any more

	closeOnce sync.Once
	closeErr  error
}

// Start starts the servers and returns when all of them serve clients. ctx bounds only the
// start. The error contains the end of the servers' logs. The caller must Close the ensemble.
func Start(ctx context.Context, opts *Options) (*Ensemble, error) {
	return startOn(ctx, opts, FreePorts)
}

// startOn is Start with ports that choose returns.
func startOn(ctx context.Context, opts *Options, choose func(int) ([]int, error)) (*Ensemble, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	inst, err := find()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if entries, err := os.ReadDir(o.Dir); o.Dir != "" && err == nil && len(entries) > 0 {
		return nil, fmt.Errorf("zktest: %s is not empty", o.Dir)
	}
	// Another process can take a port between the choice and the start.
	const attempts = 5
	for i := 1; ; i++ {
		ports, err := choose(portsPerServer * o.Servers)
		if err != nil {
			return nil, err
		}
		e, err := start(ctx, inst, o, ports)
		if err == nil {
			return e, nil
		}
		if i == attempts || !errors.Is(err, errPortTaken) || ctx.Err() != nil {
			return nil, err
		}
	}
}

func start(ctx context.Context, inst installation, o Options, ports []int) (_ *Ensemble, err error) {
	e := &Ensemble{dir: o.Dir, keep: o.Dir != ""}
	if e.keep {
		err = os.MkdirAll(e.dir, 0o755)
	} else {
		e.dir, err = os.MkdirTemp("", "coord-zookeeper-")
	}
	if err != nil {
		return nil, fmt.Errorf("zktest: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
			if errors.Is(err, errPortTaken) { // try again with other ports
				for _, s := range e.servers {
					err = errors.Join(err, os.RemoveAll(s.dir))
				}
			}
		}
	}()
	if err := e.configure(inst, o, ports); err != nil {
		return nil, err
	}
	for _, s := range e.servers {
		if err := s.Launch(); err != nil {
			return nil, err
		}
	}
	return e, e.await(ctx, true)
}

// configure writes the directory of every server.
func (e *Ensemble) configure(inst installation, o Options, ports []int) error {
	for i := range o.Servers {
		s := &Server{
			ensemble: e,
			inst:     inst,
			id:       i + 1,
			dir:      filepath.Join(e.dir, strconv.Itoa(i+1)),
			ports:    newPortSet(ports[portsPerServer*i:]),
			tls:      o.TLS != nil,
			javaArgs: slices.Clone(o.JavaArgs),
		}
		if o.DataDir != nil {
			s.dataDir = o.DataDir(s.id)
		}
		if o.Env != nil {
			s.env = slices.Clone(o.Env(s.id))
		}
		e.servers = append(e.servers, s)
	}
	for _, s := range e.servers {
		if err := s.writeConfig(o); err != nil {
			return fmt.Errorf("zktest: %w", err)
		}
	}
	return nil
}

// Await returns when every server that is alive serves clients. It fails at
// once when none is alive or one ends meanwhile.
func (e *Ensemble) Await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	return e.await(ctx, false)
}

func (e *Ensemble) await(ctx context.Context, first bool) error {
	alive := 0
	for _, s := range e.servers {
		if !s.Alive() && !first {
			continue
		}
		alive++
		if err := s.await(ctx, first); err != nil {
			return err
		}
	}
	if alive == 0 {
		return errors.New("zktest: no server is alive")
	}
	return nil
}

// Servers returns the servers in the order of their numbers.
func (e *Ensemble) Servers() []*Server { return slices.Clone(e.servers) }

// Addrs returns the client addresses ("127.0.0.1:port") of all servers.
func (e *Ensemble) Addrs() []string {
	addrs := make([]string, len(e.servers))
	for i, s := range e.servers {
		addrs[i] = s.Addr()
	}
	return addrs
}

// SecureAddrs returns the addresses with TLS of all servers, or nil without
// Options.TLS.
func (e *Ensemble) SecureAddrs() []string {
	var addrs []string
	for _, s := range e.servers {
		if s.tls {
			addrs = append(addrs, s.SecureAddr())
		}
	}
	return addrs
}

// Leader returns the leading server, or the only one if it is standalone. While there is none
// it waits until ctx ends. Paused servers do not count. A leader that was paused and resumed
// reports for a moment that it still leads; of two, Leader returns the one with the later
// epoch.
func (e *Ensemble) Leader(ctx context.Context) (*Server, error) {
	var why error
	for {
		var leader *Server
		var latest int64
		for _, s := range e.servers {
			st, err := s.srvr(ctx)
			if err != nil {
				why = err
				continue
			}
			if (st.role == Leader || st.role == Standalone) && (leader == nil || st.zxid > latest) {
				leader, latest = s, st.zxid
			}
		}
		if leader != nil {
			return leader, nil
		}
		if err := pause(ctx); err != nil {
			return nil, fmt.Errorf("zktest: no leader: %w", errors.Join(err, why))
		}
	}
}

// Followers returns the servers that follow a leader at this moment.
func (e *Ensemble) Followers(ctx context.Context) []*Server {
	var followers []*Server
	for _, s := range e.servers {
		if role, err := s.Role(ctx); err == nil && role == Follower {
			followers = append(followers, s)
		}
	}
	return followers
}

// Close kills every server, waits for its end, and removes the temporary
// directory. A second Close does nothing and returns the same error.
func (e *Ensemble) Close() error {
	e.closeOnce.Do(func() {
		e.starting.Lock()
		e.closed = true
		e.starting.Unlock()
		for _, s := range e.servers {
			s.signal(os.Kill)
		}
		for _, s := range e.servers {
			s.waitExit()
		}
		if !e.keep {
			e.closeErr = os.RemoveAll(e.dir)
		}
	})
	return e.closeErr
}

// pollInterval is the interval at which a condition without a signal is polled.
const pollInterval = 20 * time.Millisecond

// pause waits for the next poll of such a condition, or for the end of ctx.
func pause(ctx context.Context) error {
	t := time.NewTimer(pollInterval)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/zookeeper"
)

// tool is one run of coordctl.
type tool struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	signals        <-chan os.Signal

	path       string                      // PATH
	values     []string                    // the words after it
	before     func(context.Context) error // unless nil, called before a client is opened
	asked      []serverState               // by askFirst
	found      []finding                   // by examinePostgres
	foundClock *clock                      // the same
	dashed     []string                    // the words after "--"

	unreached unreached

	flags *pflag.FlagSet // those of all verbs

	servers       string
	backend       string
	prefix        string
	schema        string
	memory        bool
	namespace     string
	timeout       time.Duration
	margin        time.Duration
	wait          time.Duration // negative: for ever
	tls           bool
	ca, cert, key string
	credentials   string // a file
	context       string // of the config file
	json          bool
	output        string // "text" or "json"
	yes           bool
	verbose       bool

	digest  string         // "user:password" for ZooKeeper, from the environment or the file
	user    string         // the same for etcd and PostgreSQL
	private bool           // the value of servers comes from the environment, which other users cannot read
	only    string         // the backend that the verb is for; "" for any
	pg      *pgconn.Config // of --servers for PostgreSQL, else nil; read only

	// Flags of some verbs.
	grace time.Duration
	id    string
	once  bool
	data  bool

	resign       bool
	revokeSignal signalFlag // 0: COMMAND is not told of a request for the lock
	revokeGrace  time.Duration

	// Flags of guard.
	listen   string        // a path; "" for the parent of COMMAND
	endDelay time.Duration // between the death and the end of the sessions

	// Flags of the verbs of queues.
	priority int64
	delay    time.Duration
	deadPath string
	all      bool
	limit    int
	putFlags *pflag.FlagSet

	// Flags of other verbs.
	ifVersion string
	by        string
	reason    string
	force     bool
	after     time.Duration
	doubt     bool
	readOnly  bool
	depth     int
	dry       bool
}

const (
	mostGrace = 900 * time.Millisecond // so that the command ends within a second
	openLimit = 30 * time.Second       // for the first contact
)

// addFlags defines the flags of all verbs.
func (t *tool) addFlags(root *cobra.Command) {
	fs := root.PersistentFlags()
	t.flags = fs
	fs.StringVar(&t.servers, "servers", "", "the `servers`, as host:port, separated by commas; for postgres also a connection string")
	fs.StringVar(&t.backend, "backend", "zookeeper", "`what` the servers are: zookeeper, etcd or postgres")
	fs.StringVar(&t.prefix, "prefix", "", "etcd: the `text` with which the keys begin (default coord)")
	fs.StringVar(&t.schema, "schema", "", "postgres: the `name` of the schema that has the nodes (default coord)")
	fs.StringVar(&t.namespace, "namespace", "", "a `path` that is a prefix of PATH")
	fs.StringVar(&t.context, "context", "", "the `name` of a context of the config file")
	fs.BoolVar(&t.memory, "memory", false, "use a service in the memory of this process, to try things out")
	fs.DurationVar(&t.timeout, "timeout", 10*time.Second, "the session timeout: how long the service waits for a silent client")
	fs.DurationVar(&t.margin, "margin", 0, "how long before that a loss is noticed (default a third of the timeout)")
	t.wait = -1
	fs.Var((*waitFlag)(&t.wait), "wait", "how long to wait: for the lock, leadership, an item, an answer; 0 tries once, or is refused")
	fs.BoolVar(&t.tls, "tls", false, "use TLS, with the system's authorities unless --tls-ca is given")
	fs.StringVar(&t.ca, "tls-ca", "", "a PEM `file` with the authorities that sign the servers' certificates")
	fs.StringVar(&t.cert, "tls-cert", "", "a PEM `file` with the certificate of this client")
	fs.StringVar(&t.key, "tls-key", "", "a PEM `file` with its key")
	fs.StringVar(&t.credentials, "credentials", "", "a `file` with user:password, which only its owner can read")
	fs.BoolVar(&t.json, "json", false, "print JSON; the same as -o json")
	fs.StringVarP(&t.output, "output", "o", "text", "the `form` of the output: text or json")
	fs.BoolVarP(&t.yes, "yes", "y", false, "do not ask before something is taken by force or deleted")
	fs.BoolVarP(&t.verbose, "verbose", "v", false, "log changes of the session")
}

// waitFlag is a duration that is not negative. Its default is no limit.
type waitFlag time.Duration

func (w *waitFlag) Type() string { return "duration" }

func (w *waitFlag) String() string {
	if *w < 0 {
		return ""
	}
	return time.Duration(*w).String()
}

func (w *waitFlag) Set(s string) error {
	d, err := time.ParseDuration(s)
	if err == nil && d < 0 {
		err = errors.New("negative")
	}
	if err == nil {
		*w = waitFlag(d)
	}
	return err
}

// checkFlags completes the flags from the environment and the config file, and checks them.
func (t *tool) checkFlags() error {
	if t.only != "" && !t.flags.Changed("backend") {
		t.backend = t.only // unless the environment or the config file has another one
	}
	if err := t.complete(); err != nil {
		return err
	}
	switch {
	case t.only != "" && (t.memory || t.backend != t.only):
		return usage("this verb needs --backend %s", t.only)
	case t.output != "text" && t.output != "json":
		return usage("--output %q: want text or json", t.output)
	case t.grace < 0 || t.grace > mostGrace:
		return usage("--grace %v: want from 0 to %v, since the command must end within a second", t.grace, mostGrace)
	case t.revokeGrace < 0:
		return usage("--revoke-grace %v is negative", t.revokeGrace)
	case t.timeout <= 0 || t.margin < 0 || t.margin >= t.timeout:
		return usage("--timeout %v and --margin %v: the margin must be less than the timeout", t.timeout, t.margin)
	case t.memory && t.flags.Changed("servers"):
		return usage("--memory and --servers exclude each other")
	case t.backend != "zookeeper" && t.backend != "etcd" && t.backend != "postgres":
		return usage("--backend %q: want zookeeper, etcd or postgres", t.backend)
	case t.prefix != "" && (t.memory || t.backend != "etcd"):
		return usage("--prefix needs --backend etcd")
	case t.schema != "" && (t.memory || t.backend != "postgres"):
		return usage("--schema needs --backend postgres")
	case t.namespace != "" && backend.CheckPath(t.namespace) != nil:
		return usage("--namespace: %w", backend.CheckPath(t.namespace))
	case (t.cert == "") != (t.key == ""):
		return usage("--tls-cert and --tls-key need each other")
	}
	t.json = t.json || t.output == "json"
	if t.backend == "postgres" && !t.memory {
		return t.parsePostgres()
	}
	return nil
}

// defaultID returns the default name of a candidate.
func defaultID() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s:%d", host, os.Getpid())
}

// hosts returns the addresses of the servers, for reports too: a connection string can have a password.
func (t *tool) hosts() []string {
	if t.pg != nil {
		return postgresHosts(t.pg)
	}
	return strings.FieldsFunc(t.servers, func(r rune) bool { return r == ',' || r == ' ' })
}

// about names the service in a few words.
func (t *tool) about() string {
	hosts := t.hosts()
	switch len(hosts) {
	case 0:
		return "memory"
	case 1:
		return printable(hosts[0])
	}
	return fmt.Sprintf("%s and %d more", printable(hosts[0]), len(hosts)-1)
}

// service returns the backend that the flags select.
func (t *tool) service() (backend.Backend, error) {
	if t.memory {
		return memory.New(&memory.Options{SessionTimeout: t.timeout, LossMargin: t.margin}), nil
	}
	if len(t.hosts()) == 0 {
		return nil, errNoServers
	}
	cfg, err := t.tlsConfig()
	if err != nil {
		return nil, err
	}
	switch t.backend {
	case "postgres":
		return postgres.New(t.connString(), t.postgresOptions(cfg)), nil
	case "etcd":
		return etcd.New(t.hosts(), t.etcdOptions(cfg)), nil
	}
	return zookeeper.New(t.hosts(), t.zookeeperOptions(cfg)), nil
}

func (t *tool) postgresOptions(cfg *tls.Config) *postgres.Options {
	return &postgres.Options{
		SessionTimeout: t.timeout, LossMargin: t.margin, Schema: t.schema, KeepSchema: true, Logger: t.logger(),
		BeforeConnect: func(_ context.Context, c *pgconn.Config) error { t.overridePostgres(c, cfg); return nil },
	}
}

func (t *tool) etcdOptions(cfg *tls.Config) *etcd.Options {
	user, password, _ := strings.Cut(t.user, ":")
	return &etcd.Options{
		SessionTimeout: t.timeout, LossMargin: t.margin, TLS: cfg, Username: user, Password: password, Prefix: t.prefix, Logger: t.logger(),
		OpenWithoutSpace: true, // to delete what fills it
	}
}

func (t *tool) zookeeperOptions(cfg *tls.Config) *zookeeper.Options {
	return &zookeeper.Options{SessionTimeout: t.timeout, LossMargin: t.margin, TLS: cfg, Digest: t.digest, Logger: t.logger()}
}

var errNoServers = usage("no servers: give --servers host:port,…, or --memory to try things out")

// tlsConfig returns nil if no flag asks for TLS.
func (t *tool) tlsConfig() (*tls.Config, error) {
	if !t.tls && t.ca == "" && t.cert == "" {
		return nil, nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.ca != "" {
		pem, err := os.ReadFile(t.ca)
		if err != nil {
			return nil, usage("--tls-ca: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, usage("--tls-ca %s: the file has no certificate", t.ca)
		}
	}
	if t.cert != "" {
		pair, err := tls.LoadX509KeyPair(t.cert, t.key)
		if err != nil {
			return nil, usage("--tls-cert: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// logger returns the Logger of the backend and the client. Without --verbose it is that of unreached.
func (t *tool) logger() *slog.Logger {
	if !t.verbose {
		return slog.New(&t.unreached)
	}
	return slog.New(slog.NewTextHandler(t.stderr, nil))
}

// unreached is a slog.Handler that tells once that no server can be reached, and why, while coordctl connects:
// otherwise the reason would come at the end of the wait only.
type unreached struct {
	mu   sync.Mutex
	tell func(why any) // nil: not connecting, or told
}

// connecting sets tell; nil ends that.
func (u *unreached) connecting(tell func(why any)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.tell = tell
}

func (u *unreached) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

func (u *unreached) Handle(_ context.Context, r slog.Record) error {
	if r.Message != "coord: no server can be reached" {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "error" && u.tell != nil {
			u.tell(a.Value.Any())
			u.tell = nil
		}
		return true
	})
	return nil
}

func (u *unreached) WithAttrs([]slog.Attr) slog.Handler { return u }
func (u *unreached) WithGroup(string) slog.Handler      { return u }

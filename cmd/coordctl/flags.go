package main

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/backend/zookeeper"
)

// tool is one run of coordctl.
type tool struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	signals        <-chan os.Signal

	verb    string // "lock", "queue put" and so on
	path    string
	values  []string // of queue put
	command []string // the words after "--"

	servers       string
	backend       string
	prefix        string
	memory        bool
	namespace     string
	timeout       time.Duration
	margin        time.Duration
	wait          time.Duration // negative: for ever
	grace         time.Duration
	id            string
	once          bool
	json          bool
	data          bool
	verbose       bool
	tls           bool
	ca, cert, key string
}

const synopsis = `usage: coordctl [flags] lock    PATH -- COMMAND [ARGUMENT…]
       coordctl [flags] elect   PATH -- COMMAND [ARGUMENT…]
       coordctl [flags] inspect PATH
       coordctl [flags] queue   PATH | put PATH [VALUE…] | take PATH | len PATH
       coordctl [flags] watch   PATH

Credentials: COORD_DIGEST=user:password in the environment; for etcd COORD_USER=user:password.
`

const (
	mostGrace = 900 * time.Millisecond // so that the command ends within a second
	openLimit = 30 * time.Second       // for the first contact
)

// parse reads the command line. The verb is empty if there is nothing to do.
func (t *tool) parse(args []string) error {
	fs := flag.NewFlagSet("coordctl", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&t.servers, "servers", os.Getenv("COORD_SERVERS"), "the servers, as `host:port,…`; also COORD_SERVERS")
	fs.StringVar(&t.backend, "backend", cmp.Or(os.Getenv("COORD_BACKEND"), "zookeeper"), "what the servers are: zookeeper or etcd; also COORD_BACKEND")
	fs.StringVar(&t.prefix, "prefix", "", "etcd: what the keys begin with (default coord)")
	fs.BoolVar(&t.memory, "memory", false, "use a service in the memory of this process, to try things out")
	fs.StringVar(&t.namespace, "namespace", "", "a `path` that is a prefix of PATH")
	fs.DurationVar(&t.timeout, "timeout", 10*time.Second, "the session timeout: how long the service waits for a silent client")
	fs.DurationVar(&t.margin, "margin", 0, "how long before that a loss is noticed (default a third of the timeout)")
	t.wait = -1
	fs.Func("wait", "how long to wait for the lock, leadership or an item, as a `duration`; 0 tries once (default for ever)", func(s string) (err error) {
		if t.wait, err = time.ParseDuration(s); err == nil && t.wait < 0 {
			err = errors.New("negative")
		}
		return err
	})
	fs.DurationVar(&t.grace, "grace", 300*time.Millisecond, "the time between SIGTERM and SIGKILL when the lock is lost, at most "+mostGrace.String())
	fs.StringVar(&t.id, "id", defaultID(), "lock, elect: the name that inspect shows")
	fs.BoolVar(&t.once, "once", false, "elect: do not campaign again")
	fs.BoolVar(&t.json, "json", false, "inspect, queue PATH, watch: print JSON")
	fs.BoolVar(&t.data, "data", false, "inspect, watch: show stored data, which can be secret")
	fs.BoolVar(&t.verbose, "v", false, "log changes of the session")
	fs.BoolVar(&t.tls, "tls", false, "use TLS, with the system's authorities unless -tls-ca is given")
	fs.StringVar(&t.ca, "tls-ca", "", "a PEM `file` with the authorities that sign the servers' certificates")
	fs.StringVar(&t.cert, "tls-cert", "", "a PEM `file` with the certificate of this client")
	fs.StringVar(&t.key, "tls-key", "", "a PEM `file` with its key")

	if i := slices.Index(args, "--"); i >= 0 {
		args, t.command = args[:i], args[i+1:]
	}
	var words []string
	for {
		err := fs.Parse(args)
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(t.stdout, synopsis+"\nFlags:\n")
			fs.SetOutput(t.stdout)
			fs.PrintDefaults()
			return nil
		}
		if err != nil {
			return usage("%w", err)
		}
		if fs.NArg() == 0 {
			break
		}
		words, args = append(words, fs.Arg(0)), fs.Args()[1:]
	}
	return t.check(words)
}

// check interprets the arguments that are not flags.
func (t *tool) check(words []string) error {
	if len(words) > 1 && words[0] == "queue" && !strings.HasPrefix(words[1], "/") {
		words = append([]string{"queue " + words[1]}, words[2:]...)
	}
	if len(words) == 0 {
		return usage("nothing to do")
	}
	verb, words := words[0], words[1:]
	runs := verb == "lock" || verb == "elect"
	switch verb {
	case "lock", "elect", "inspect", "watch", "queue", "queue put", "queue take", "queue len":
	default:
		return usage("unknown command %q", verb)
	}
	if len(words) == 0 {
		return usage("%s needs a PATH", verb)
	}
	t.path, t.values = words[0], words[1:]
	switch {
	case backend.CheckPath(t.path) != nil:
		return usage("%w", backend.CheckPath(t.path))
	case len(t.values) > 0 && verb != "queue put":
		return usage("unexpected argument %q; a command comes after --", t.values[0])
	case runs && len(t.command) == 0:
		return usage("%s needs a command after --", verb)
	case !runs && t.command != nil:
		return usage("%s takes no command", verb)
	case t.wait == 0 && verb == "elect":
		return usage("-wait 0: a campaign takes a moment")
	case t.grace < 0 || t.grace > mostGrace:
		return usage("-grace %v: want from 0 to %v, since the command must end within a second", t.grace, mostGrace)
	case t.timeout <= 0 || t.margin < 0 || t.margin >= t.timeout:
		return usage("-timeout %v and -margin %v: the margin is a part of the timeout", t.timeout, t.margin)
	case t.memory && t.servers != "" && os.Getenv("COORD_SERVERS") != t.servers:
		return usage("-memory and -servers do not go together")
	case t.backend != "zookeeper" && t.backend != "etcd":
		return usage("-backend %q: want zookeeper or etcd", t.backend)
	case t.prefix != "" && (t.memory || t.backend != "etcd"):
		return usage("-prefix needs -backend etcd")
	case !t.memory && len(t.hosts()) == 0:
		return usage("no servers: give -servers host:port,…, or -memory to try things out")
	case (t.cert == "") != (t.key == ""):
		return usage("-tls-cert and -tls-key go together")
	}
	t.verb = verb
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

func (t *tool) hosts() []string {
	return strings.FieldsFunc(t.servers, func(r rune) bool { return r == ',' || r == ' ' })
}

// service returns the backend that the flags select.
func (t *tool) service() (backend.Backend, error) {
	if t.memory {
		return memory.New(&memory.Options{SessionTimeout: t.timeout, LossMargin: t.margin}), nil
	}
	cfg, err := t.tlsConfig()
	if err != nil {
		return nil, err
	}
	if t.backend == "etcd" {
		user, password, _ := strings.Cut(os.Getenv("COORD_USER"), ":")
		return etcd.New(t.hosts(), &etcd.Options{
			SessionTimeout: t.timeout, LossMargin: t.margin, TLS: cfg, Username: user, Password: password, Prefix: t.prefix, Logger: t.logger(),
		}), nil
	}
	return zookeeper.New(t.hosts(), &zookeeper.Options{
		SessionTimeout: t.timeout, LossMargin: t.margin, TLS: cfg, Digest: os.Getenv("COORD_DIGEST"), Logger: t.logger(),
	}), nil
}

// tlsConfig returns nil if no flag asks for TLS.
func (t *tool) tlsConfig() (*tls.Config, error) {
	if !t.tls && t.ca == "" && t.cert == "" {
		return nil, nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.ca != "" {
		pem, err := os.ReadFile(t.ca)
		if err != nil {
			return nil, usage("-tls-ca: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, usage("-tls-ca %s: no certificate in it", t.ca)
		}
	}
	if t.cert != "" {
		pair, err := tls.LoadX509KeyPair(t.cert, t.key)
		if err != nil {
			return nil, usage("-tls-cert: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// logger returns nil unless -v is given.
func (t *tool) logger() *slog.Logger {
	if !t.verbose {
		return nil
	}
	return slog.New(slog.NewTextHandler(t.stderr, nil))
}

// Bench measures coord on memory and on ZooKeeper, compared with the raw client and, with
// -peers, with the locks and queues of other libraries, in one run on one ensemble. With -peers
// it also measures coord on etcd, beside etcd's own package concurrency on the same servers, and coord
// on PostgreSQL, beside advisory locks and river on the same server.
//
//	go run ./bench
//	go run ./bench -quick
//	go run ./bench -peers -install
//	go run ./bench -peers -run '^postgres'
//	go run ./bench -compare results.json other/results.json
//	go run ./bench -page BENCHMARKS.md results.json
//	go run ./bench -servers 10.0.0.1:2181,10.0.0.2:2181,10.0.0.3:2181
//
// The etcd servers are part of this command, and need no installation.
//
// It starts three ZooKeeper servers, unless servers are given, prints tables while it runs,
// and writes results.json, results.md and plots into a directory. It exits with 1 if a
// measurement failed, with 2 for invalid arguments, and with 130 if it was interrupted;
// servers and processes that it started end with it in any case.
//
// To renew BENCHMARKS.md, run the command that it names with -out bench/results, on an idle machine
// (with -name NAME for a table that has from=NAME), and then
//
//	go run ./bench -page BENCHMARKS.md bench/results/results.json
//	go run ./bench -page bench/results/figures.md bench/results/results.json
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime/pprof"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == memberVerb {
		os.Exit(serveMember(os.Args[2:], os.Stderr))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// config holds the parsed arguments.
type config struct {
	servers   []string
	out, name string
	peers     bool
	install   bool
	etcd      string // a command; empty for the server that is part of this one
	fsync     bool
	quick     bool
	profile   string
	compare   []string // two files of results
	page      []string // a page and a file of results
	only      *regexp.Regexp
	onlyText  string
	sizes     sizes
}

// parse parses the arguments. It prints errors to out.
func parse(args []string, out io.Writer) (*config, error) {
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(out)
	var (
		c       config
		servers = f.String("servers", "", "use these ZooKeeper `servers` (addresses with commas between them) instead of starting three")
		compare = f.Bool("compare", false, "run nothing, but compare two runs: their results.json are the arguments")
		page    = f.Bool("page", false, "run nothing, but write figures into a page like BENCHMARKS.md, and draw the plots beside the results again: it and a results.json are the arguments")
		quick   = f.Bool("quick", false, "only check that everything works, in less than 2 minutes")
		rounds  = f.Int("rounds", 0, "the number of `times` that each cell is run; 0 means 5, and 1 with -quick")
		span    = f.Duration("span", 0, "the duration of a run that is compared with others; 0 means 1s, and 120ms with -quick")
	)
	f.StringVar(&c.out, "out", "bench-results", "write results and plots into this `directory`")
	f.StringVar(&c.name, "name", "results", "call the files of the results `NAME`.json and NAME.md, for a page with from=NAME")
	f.BoolVar(&c.peers, "peers", false, "measure go-zookeeper, Curator, kazoo, etcd and PostgreSQL too")
	f.BoolVar(&c.install, "install", false, "with -peers, install the missing ones (Debian and Ubuntu, as root)")
	f.StringVar(&c.etcd, "etcd", "", "with -peers, measure the servers of this etcd `command` instead of those that are part of bench")
	f.BoolVar(&c.fsync, "fsync", true, "make the started ZooKeeper servers wait for the disk, as etcd does")
	f.StringVar(&c.profile, "cpuprofile", "", "write a processor profile of this process into this `file`, for go tool pprof")
	f.StringVar(&c.onlyText, "run", "", "run only groups whose names match this regular `expression`")
	fail := func(format string, args ...any) (*config, error) {
		err := fmt.Errorf(format, args...)
		fmt.Fprintf(out, "bench: %v\n", err)
		f.Usage()
		return nil, err
	}
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if *compare {
		if f.NArg() != 2 {
			return fail("-compare wants two results.json")
		}
		c.compare = f.Args()
		return &c, nil
	}
	if *page {
		if f.NArg() != 2 {
			return fail("-page wants a page and a results.json")
		}
		c.page = f.Args()
		return &c, nil
	}
	if f.NArg() > 0 {
		return fail("unexpected argument %q", f.Arg(0))
	}
	if *servers != "" {
		for _, s := range strings.Split(*servers, ",") {
			host, port, ok := strings.Cut(s, ":")
			if !ok || host == "" || port == "" {
				return fail("-servers: %q is not host:port", s)
			}
			c.servers = append(c.servers, s)
		}
	}
	if *rounds < 0 {
		return fail("-rounds: %d is negative", *rounds)
	}
	if *span < 0 {
		return fail("-span: %v is negative", *span)
	}
	if c.install && !c.peers {
		return fail("-install goes with -peers")
	}
	if c.etcd != "" && !c.peers {
		return fail("-etcd goes with -peers")
	}
	if c.name == "" || c.name != filepath.Base(c.name) {
		return fail("-name: %q is not the name of a file", c.name)
	}
	if c.out == "" {
		return fail("-out is empty")
	}
	if c.onlyText != "" {
		var err error
		if c.only, err = regexp.Compile(c.onlyText); err != nil {
			return fail("-run: %v", err)
		}
	}
	c.sizes = fullSizes
	if c.quick = *quick; c.quick {
		c.sizes = quickSizes
	}
	if *rounds > 0 {
		c.sizes.rounds = *rounds
	}
	if *span > 0 {
		c.sizes.short = *span * c.sizes.short / c.sizes.long
		c.sizes.long = *span
	}
	return &c, nil
}

// run is main without the process; it returns the exit code.
func run(ctx context.Context, args []string, out, notes io.Writer) int {
	c, err := parse(args, notes)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	switch {
	case c.compare != nil:
		return compareFiles(c.compare, out, notes)
	case c.page != nil:
		return writePage(c.page[0], c.page[1], notes)
	}
	r, err := measure(ctx, c, args, out, notes)
	if ctx.Err() != nil {
		fmt.Fprintln(notes, "bench: interrupted")
		return 130
	}
	if err == nil && len(r.Results) == 0 {
		fmt.Fprintf(notes, "bench: -run %q matches no group\n", c.onlyText)
		return 2
	}
	if err == nil {
		err = r.write(c.out, c.name)
	}
	if err != nil {
		fmt.Fprintf(notes, "bench: %v\n", err)
		return 1
	}
	fmt.Fprintf(out, "\nTARGETS\n")
	for _, t := range r.Targets {
		fmt.Fprintln(out, t)
	}
	for _, m := range r.Missing {
		fmt.Fprintf(out, "skipped: %s: %s; -install installs %s\n", m.Who, m.Why, m.Wants)
	}
	fmt.Fprintf(out, "\n%.0f s; %s.md, %[2]s.json and plots are in %[3]s\n", r.Seconds, c.name, c.out)
	if failed := r.failed(); len(failed) > 0 {
		fmt.Fprintf(notes, "\n%d cells failed:\n", len(failed))
		for _, f := range failed {
			fmt.Fprintf(notes, "  %s: %s\n", f.name, f.Error)
		}
		return 1
	}
	return 0
}

// measure runs the planned groups, on servers that end with it.
func measure(ctx context.Context, c *config, args []string, out, notes io.Writer) (_ *report, err error) {
	r := &report{
		Began: time.Now(), Rounds: c.sizes.rounds, Command: command(args),
		Machine: thisMachine(), table: &table{},
	}
	e, err := newEnv(ctx, c.servers, c.fsync, c.quick, notes)
	if err != nil {
		return nil, err
	}
	defer func() {
		cerr := e.Close()
		if err == nil && cerr != nil {
			fmt.Fprintf(notes, "bench: at the end: %v\n", cerr)
		}
	}()
	p := &peers{}
	if c.peers {
		if p, err = openPeers(ctx, e, c, notes); err != nil {
			return nil, err
		}
		r.Missing = p.missing
	}
	r.Machine.Services = versions(ctx, e, p)
	if r.groups, err = plan(e, p, c.sizes, c.only); err != nil {
		return nil, err
	}
	if err := warmUp(ctx, e, p, c.sizes.long); err != nil {
		return nil, err
	}
	if c.profile != "" {
		f, err := os.Create(c.profile)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return nil, err
		}
		defer pprof.StopCPUProfile()
	}
	x := &runner{out: out, notes: notes, rounds: c.sizes.rounds, table: r.table}
	if r.Results, err = x.run(ctx, r.groups); err != nil {
		return nil, err
	}
	r.Targets = judge(r.Results)
	r.Seconds = time.Since(r.Began).Seconds()
	return r, nil
}

// warmUp makes servers and peers compile their code before anything is measured.
func warmUp(ctx context.Context, e *env, p *peers, span time.Duration) error {
	if _, err := e.rawPairs(ctx, 64, 2*span); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	for _, r := range append([]rival{native{ours}}, p.all...) {
		if _, err := r.cycles(ctx, e.direct, e.root+e.path(), 16, span); err != nil {
			return fmt.Errorf("warm up %s: %w", r.who(), err)
		}
	}
	return nil
}

// command returns the command of the run as a reader can repeat it: without -out and -name, which
// do not change the measurements.
func command(args []string) string {
	words := []string{"go run ./bench"}
	for i := 0; i < len(args); i++ {
		switch name, _, given := strings.Cut(strings.TrimLeft(args[i], "-"), "="); {
		case name != "out" && name != "name":
			words = append(words, args[i])
		case !given:
			i++ // its value is the next argument
		}
	}
	return strings.Join(words, " ")
}

// versionOf returns the version in the first line of a ZooKeeper server's "srvr": "Zookeeper
// version: 3.8.0-<commit>, built on ...". Some builds have a placeholder instead of the
// commit, so the commit is dropped.
func versionOf(srvr string) string {
	line, _, _ := strings.Cut(srvr, "\n")
	line, _, _ = strings.Cut(strings.TrimPrefix(line, "Zookeeper version: "), ",")
	if i := strings.LastIndexByte(line, '-'); i >= 0 {
		line = line[:i]
	}
	return line
}

// versions returns the versions of the measured services.
func versions(ctx context.Context, e *env, p *peers) map[string]string {
	v := make(map[string]string)
	if e.ensemble != nil {
		if text, err := e.ensemble.Servers()[0].FourLetter(ctx, "srvr"); err == nil {
			v[onZooKeeper] = "three servers of version " + versionOf(text)
		}
	}
	if p.etcd != nil {
		v[byEtcd] = "three servers of version " + p.etcd.version
	}
	if p.postgres != nil {
		v[onPostgres] = "one server of version " + p.postgres.version
	}
	return v
}

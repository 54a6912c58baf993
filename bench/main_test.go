package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// foreignEnv makes the test binary a peer, see foreignMain.
const foreignEnv = "COORD_BENCH_FOREIGN"

func TestMain(m *testing.M) {
	if os.Getenv(foreignEnv) != "" {
		foreignMain()
		return
	}
	if len(os.Args) > 1 && os.Args[1] == memberVerb {
		os.Exit(serveMember(os.Args[2:], os.Stderr))
	}
	goleak.VerifyTestMain(m)
}

// foreignMain executes a few commands as the peers do.
func foreignMain() {
	fmt.Println("ok")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch words := strings.Fields(in.Text()); words[0] {
		case "cycles", "turns":
			fmt.Println("ok 100 2000000000 1000 2000 3000 4000")
		case "queue", "fill", "unqueue":
			fmt.Println("ok")
		case "drain":
			fmt.Println("ok 100 2000000000")
		case "hang":
			time.Sleep(time.Hour)
		case "die":
			fmt.Fprintln(os.Stderr, "out of breath")
			os.Exit(3)
		default:
			fmt.Println("failed no such command")
		}
	}
}

func TestBadArgumentsAreNamedAndExitWithTwo(t *testing.T) {
	for args, want := range map[string]string{
		"-nonsense":             "not defined: -nonsense",
		"what":                  `unexpected argument "what"`,
		"-rounds -1":            "-rounds: -1",
		"-rounds many":          "-rounds",
		"-span -1s":             "-span",
		"-servers localhost":    `"localhost" is not host:port`,
		"-servers a:1,,b:2":     `"" is not host:port`,
		"-install":              "-install goes with -peers",
		"-etcd /bin/etcd":       "-etcd goes with -peers",
		"-run (":                "-run: error parsing regexp",
		"-name a/b":             "-name: \"a/b\" is not",
		"-out= -quick":          "-out is empty",
		"-quick=maybe -rounds1": "invalid boolean value",
	} {
		var out, notes strings.Builder
		if code := run(t.Context(), strings.Fields(args), &out, &notes); code != 2 {
			t.Errorf("bench %s: exit code %d, want 2", args, code)
		}
		if !strings.Contains(notes.String(), want) {
			t.Errorf("bench %s: %q, want %q in it", args, notes.String(), want)
		}
	}
}

// The report shows a command that a reader can type, and a version.
func TestACommandIsShownWithoutItsDirectory(t *testing.T) {
	for args, want := range map[string]string{
		"":                                "go run ./bench",
		"-peers -out /tmp/x":              "go run ./bench -peers",
		"--out=/tmp/x -peers":             "go run ./bench -peers",
		"-name queues -out /tmp/x -peers": "go run ./bench -peers",
		"-out /tmp/x -run ^costs$ -quick": "go run ./bench -run ^costs$ -quick",
	} {
		if got := command(strings.Fields(args)); got != want {
			t.Errorf("%q is shown as %q, want %q", args, got, want)
		}
	}
}

func TestAVersionIsShownWithoutItsCommit(t *testing.T) {
	for srvr, want := range map[string]string{
		"Zookeeper version: 3.8.0-${mvngit.commit.id}, built on 2022-02-25 08:49 UTC\nLatency": "3.8.0",
		"Zookeeper version: 3.9.3-c26634f34490bb0ea7a09cc51e05ede3b4e320ee, built on x":        "3.9.3",
		"Zookeeper version: 3.10.0-SNAPSHOT-1234, built on x":                                  "3.10.0-SNAPSHOT",
		"Zookeeper version: 3.5": "3.5",
	} {
		if got := versionOf(srvr); got != want {
			t.Errorf("%q is shown as %q, want %q", srvr, got, want)
		}
	}
}

func TestHelpExitsWithZero(t *testing.T) {
	var out, notes strings.Builder
	if code := run(t.Context(), []string{"-h"}, &out, &notes); code != 0 || !strings.Contains(notes.String(), "-servers") {
		t.Errorf("exit code %d: %s", code, notes.String())
	}
}

func TestArgumentsChangeTheSizes(t *testing.T) {
	c, err := parse(strings.Fields("-quick -rounds 7 -span 240ms -servers a:1,b:2 -run queue"), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	if c.sizes.rounds != 7 || c.sizes.long != 240*time.Millisecond || c.sizes.short != 2*quickSizes.short {
		t.Errorf("sizes %+v", c.sizes)
	}
	if len(c.servers) != 2 || !c.only.MatchString("queues") || c.out != "bench-results" || !c.fsync {
		t.Errorf("config %+v", c)
	}
}

// hook calls f for all text that is written.
type hook func(text string)

func (h hook) Write(b []byte) (int, error) {
	h(string(b))
	return len(b), nil
}

func TestAnInterruptEndsTheRunAndItsServers(t *testing.T) {
	requireZooKeeper(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all strings.Builder
	notes := hook(func(text string) {
		all.WriteString(text)
		if strings.Contains(text, "round 1") {
			if n := len(children(t)); n != 3 {
				t.Errorf("%d processes run, want 3 servers", n)
			}
			cancel()
		}
	})
	if code := run(ctx, []string{"-quick", "-run", "uncontended", "-out", t.TempDir()}, &all, notes); code != 130 {
		t.Errorf("exit code %d, want 130: %s", code, all.String())
	}
	if c := children(t); len(c) > 0 {
		t.Errorf("processes %v are left", c)
	}
}

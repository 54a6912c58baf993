//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"github.com/go-coord/coord"
)

// TestTheOutputOfTheVerbs runs the commands of a stored transcript in a scene, and compares their
// output and exit statuses with those of the transcript. COORD_TRANSCRIPT names a file that gets
// the output as it is.
func TestTheOutputOfTheVerbs(t *testing.T) {
	for _, v := range []struct {
		backend string
		servers func(t *testing.T) *servers
		more    func(s *scene)
	}{{"zookeeper", onZooKeeper, nil}, {"etcd", onEtcd, nil}, {"postgres", onPostgres, nil}, {"schedule", onZooKeeper, (*scene).schedule}} {
		t.Run(v.backend, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, v.servers(t), "/transcript")
			if v.more != nil {
				v.more(s)
			}
			file := filepath.Join("testdata", v.backend+".txt")
			stored, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got, raw strings.Builder
			commands := 0
			for line := range strings.Lines(string(stored)) {
				line, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "$ ")
				if !ok {
					continue
				}
				commands++
				out, status := s.run(line)
				if out != "" && !strings.HasSuffix(out, "\n") {
					out += "⏎\n" // there is no line break
				}
				end := ""
				if status != 0 {
					end = fmt.Sprintf("[exit status %d]\n", status)
				}
				fmt.Fprintf(&raw, "$ %s\n%s%s\n", line, out, end)
				fmt.Fprintf(&got, "$ %s\n%s%s\n", line, normal(out), end)
			}
			if name := os.Getenv("COORD_TRANSCRIPT"); name != "" && v.backend == "zookeeper" {
				if err := os.WriteFile(name, []byte(raw.String()), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if *update {
				if err := os.WriteFile(file, []byte(got.String()), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if commands < 10 {
				t.Errorf("%s has %d commands", file, commands)
			}
			compare(t, file, got.String(), string(stored))
			t.Logf("figure: %d commands on %s", commands, v.backend)
		})
	}
}

// compare reports the first lines in which two texts differ.
func compare(t *testing.T, what, got, want string) {
	t.Helper()
	if got == want || *update {
		return
	}
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	command := ""
	for i := 0; i < min(len(g), len(w)); i++ {
		if strings.HasPrefix(g[i], "$ ") {
			command = g[i]
		}
		if g[i] != w[i] {
			t.Errorf("%s, line %d, in %s\ngot  %s\nwant %s\n(go test -update rewrites it)", what, i+1, command, g[i], w[i])
			return
		}
	}
	t.Errorf("%s has %d lines, want %d", what, len(g), len(w))
}

// verbs returns all commands of coordctl that do something, by their names.
func verbs() (names []string, byName map[string]*cobra.Command) {
	byName = make(map[string]*cobra.Command)
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			name := strings.TrimPrefix(sub.CommandPath(), "coordctl ")
			names, byName[name] = append(names, name), sub
			walk(sub)
		}
	}
	walk(new(tool).root())
	return names, byName
}

// TestTheHelpOfEachVerb: it says what the verb does, its exit statuses, and examples, and each
// example works.
func TestTheHelpOfEachVerb(t *testing.T) {
	t.Parallel()
	s := newScene(t, onZooKeeper(t), "/examples")
	if out, status := s.run("coordctl value set /config/limits 100"); status != 0 {
		t.Fatal(out)
	}
	s.schedule()
	// The statuses of examples that are not 0.
	statuses := map[string]int{
		"coordctl top /locks": exitUsage, // there is no terminal
		"coordctl lock --wait 0 /locks/report -- echo it was free":                      exitLate,
		"coordctl elect --resign /leaders/report --reason upgrade --wait 10s":           exitNo, // nothing leads any more
		"coordctl queue remove /queues/mail --yes 7f5aa9e9-fb5f-802c-acef-b158bdff5d57": exitNo,
	}
	// The verbs that run until they are interrupted.
	endless := []string{"watch", "value watch", "group watch", "group join", "ui"}
	names, byName := verbs()
	examples := 0
	for _, name := range names {
		cmd := byName[name]
		if name == "help" || name == "config" {
			continue
		}
		if cmd.Short == "" || !strings.HasPrefix(strings.ToLower(cmd.Long), strings.ToLower(cmd.Short)) {
			t.Errorf("%s: %q, %q", name, cmd.Short, cmd.Long)
		}
		if cmd.HasSubCommands() && cmd.Example == "" {
			continue
		}
		if !strings.Contains(cmd.Long, "\nExit status:\n  0    success\n") {
			t.Errorf("the help of %s has no exit statuses:\n%s", name, cmd.Long)
		}
		if cmd.Example == "" && name != "version" {
			t.Errorf("the help of %s has no example", name)
		}
		for line := range strings.Lines(cmd.Example) {
			line = strings.TrimSpace(line)
			run, want := strings.NewReplacer("source <(", "true $(", "${fpath[1]}/", s.dir+"/").Replace(line), statuses[line]
			if strings.HasPrefix(name, "postgres ") {
				run = strings.Replace(run, " --servers postgres://admin@db1/orders", "", 1) + " --backend postgres --servers " + onPostgres(t).addrs[0]
			}
			if name == "ui" {
				run = strings.Replace(run, " --listen 127.0.0.1:8080", "", 1) + " --listen 127.0.0.1:0"
			}
			if slices.Contains(endless, name) {
				run, want = "lines 1 "+run, exitSignal+int(syscall.SIGTERM)
			}
			out, status := s.run(run)
			examples++
			if status != want {
				t.Errorf("%s\n%s[exit status %d]", line, out, status)
			}
		}
	}
	t.Logf("figure: %d examples of %d verbs", examples, len(names))
}

func TestTheHelpShowsTheSignalOfARequest(t *testing.T) {
	_, byName := verbs()
	for _, verb := range []string{"lock", "elect"} {
		if got := byName[verb].Flags().Lookup("revoke-signal").DefValue; got != "TERM" {
			t.Errorf("the help of %s shows the default %q of --revoke-signal", verb, got)
		}
	}
}

// TestAVerbEndsWithTheStatusesOfItsHelp: one that waits for the service alone has lost contact when
// --wait has passed.
func TestAVerbEndsWithTheStatusesOfItsHelp(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		exits []int
		want  int
	}{{nil, exitFailed}, {[]int{exitNo}, exitFailed}, {[]int{exitLate}, exitLate}} {
		x := &tool{stdin: strings.NewReader(""), stdout: io.Discard, stderr: io.Discard, signals: make(chan os.Signal)}
		root := x.root()
		stall := x.command(verb{name: "stall", short: "wait for the end", exits: tc.exits, do: func(ctx context.Context, _ *coord.Client) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}})
		root.AddCommand(stall)
		root.SetArgs([]string{"stall", "--memory", "--wait", "1s"})
		if err := root.ExecuteContext(t.Context()); status(err) != tc.want || !errors.Is(err, errLate) {
			t.Errorf("with the statuses %v it ends with %d, want %d: %v", tc.exits, status(err), tc.want, err)
		}
		for _, n := range []int{tc.want, exitSignal} {
			if !strings.Contains(stall.Long, fmt.Sprintf("\n  %d  ", n)) {
				t.Errorf("the help does not have the status %d:\n%s", n, stall.Long)
			}
		}
	}
}

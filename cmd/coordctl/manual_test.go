//go:build linux

package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const manualFile = "../../docs/coordctl.md"

// consoleBlock is a block of the manual with commands and their output.
var consoleBlock = regexp.MustCompile("(?s)\n```console\n(.*?)```\n")

// screenNormal replaces what differs from run to run, also on a screen of top.
func screenNormal(text string) string {
	for _, r := range []struct{ pattern, by string }{
		{`\d\d:\d\d:\d\d UTC`, "TIME"},
		{`(?m)^(.{30}).*….*$`, "$1…"}, // where it is cut depends on the width of ages
		{`\b(\d+m)?\d+s\b`, "AGE"},
		{` +\n`, "\n"},
	} {
		text = regexp.MustCompile(r.pattern).ReplaceAllString(text, r.by)
	}
	return normal(text)
}

// TestTheManualShowsWhatCoordctlPrints runs the commands of docs/coordctl.md in a scene.
func TestTheManualShowsWhatCoordctlPrints(t *testing.T) {
	t.Parallel()
	stored, err := os.ReadFile(manualFile)
	if err != nil {
		t.Fatal(err)
	}
	s := newScene(t, onZooKeeper(t), "/app")
	commands := 0
	run := func(line string) string {
		commands++
		if line == "coordctl top" {
			x := s.terminal(80, 24, line)
			screen := x.shows("/locks/report", "/tx/orders", "watched", "Enter open")
			return strings.TrimRight(screen, "\n") + "\n"
		}
		out, status := s.run(line)
		if out != "" && !strings.HasSuffix(out, "\n") {
			out += "\n"
		}
		if status != 0 {
			out += fmt.Sprintf("[exit status %d]\n", status)
		}
		return out
	}
	got := consoleBlock.ReplaceAllStringFunc(string(stored), func(block string) string {
		var b strings.Builder
		b.WriteString("\n```console\n")
		for line := range strings.Lines(block) {
			if command, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "$ "); ok {
				if b.Len() > len("\n```console\n") {
					b.WriteString("\n")
				}
				fmt.Fprintf(&b, "$ %s\n%s", command, run(command))
			}
		}
		b.WriteString("```\n")
		return b.String()
	})
	if commands < 20 {
		t.Errorf("the manual has %d commands", commands)
	}
	if *update {
		if err := os.WriteFile(manualFile, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	compare(t, manualFile, screenNormal(got), screenNormal(string(stored)))
	t.Logf("figure: %d commands of the manual", commands)
}

// TestEachQuestionIsAnsweredByItsCommand runs the commands of the first table of the manual.
func TestEachQuestionIsAnsweredByItsCommand(t *testing.T) {
	t.Parallel()
	stored, err := os.ReadFile(manualFile)
	if err != nil {
		t.Fatal(err)
	}
	s := newScene(t, onZooKeeper(t), "/questions")
	_, section, _ := strings.Cut(string(stored), "\n## Questions\n")
	section, _, _ = strings.Cut(section, "\n## ")
	answers := map[string][]string{ // what must be in them
		"coordctl inspect /locks/report":                           {`"web-1"`, `"web-2"`, "waits for", "came"},
		"coordctl inspect /leaders/scheduler":                      {`led by "node-a", which is ready`},
		"coordctl inspect /queues/mail":                            {"1 ready, 0 claimed", "2 dead letters"},
		"coordctl top /queues":                                     {"/queues/mail", "1 ready, 0 claimed, 2 dead"},
		"coordctl queue dead /queues/mail":                         {"no such host"},
		"coordctl tx list /tx/orders --doubt":                      {"order-4711", "prepared", "db:yes"},
		"coordctl shards /shards/timers":                           {"1      node-a"},
		"coordctl group list /services/mail":                       {"node-a"},
		"coordctl value get /config/old --json":                    {`"version":0`},
		"coordctl check":                                           {"server", "clock", "round trip"},
		"coordctl check /locks":                                    {"create"},
		"coordctl top --once /locks":                               {"/locks/report"},
		"coordctl watch /config":                                   {"/config"},
		"coordctl revoke /locks/report --force --after 10ms --yes": {"/locks/report: web-1 released it"},
	}
	tried := 0
	for _, m := range regexp.MustCompile("(?m)^\\| [^|]* \\| `(coordctl [^`]*)`").FindAllStringSubmatch(section, -1) {
		tried++
		line, run, want := m[1], m[1], 0
		switch line {
		case "coordctl top /queues":
			run += " --once"
		case "coordctl watch /config":
			run, want = "lines 1 "+run, exitSignal+15
		}
		out, status := s.run(run)
		if status != want || len(answers[line]) == 0 {
			t.Errorf("%s: status %d, %d answers are known: %s", line, status, len(answers[line]), out)
		}
		for _, text := range answers[line] {
			if !strings.Contains(out, text) {
				t.Errorf("%s does not say %q:\n%s", line, text, out)
			}
		}
	}
	if tried != len(answers) {
		t.Errorf("%d questions have a command, want %d", tried, len(answers))
	}
}

// TestTheManualNamesEachVerbAndStatus: also the flags that it names exist, and its config file is one.
func TestTheManualNamesEachVerbAndStatus(t *testing.T) {
	stored, err := os.ReadFile(manualFile)
	if err != nil {
		t.Fatal(err)
	}
	text := string(stored)
	names, byName := verbs()
	flags := map[string]bool{"version": true, "help": true}
	for _, f := range regexp.MustCompile(`(?m)--([a-z-]+)`).FindAllStringSubmatch(fmt.Sprint(new(tool).root().UsageString()), -1) {
		flags[f[1]] = true
	}
	for _, name := range names {
		if name != "config" && !strings.Contains(text, "coordctl "+name) {
			t.Errorf("the manual does not name %s", name)
		}
		for _, f := range regexp.MustCompile(`--([a-z-]+)`).FindAllStringSubmatch(byName[name].LocalFlags().FlagUsages(), -1) {
			flags[f[1]] = true
		}
	}
	_, own, _ := strings.Cut(text, "\n## Install\n") // what is above has flags of other tools
	for _, f := range regexp.MustCompile("[` ]--([a-z][a-z-]*)").FindAllStringSubmatch(own, -1) {
		if !flags[f[1]] {
			t.Errorf("there is no flag --%s", f[1])
		}
	}
	table := "| status | meaning |\n|---|---|\n| 0 | success |\n"
	for _, n := range slices.Sorted(maps.Keys(statuses)) {
		if n == exitSignal {
			table += "| 128 and more | 128 plus the number of a signal that ended coordctl |\n"
			continue
		}
		table += fmt.Sprintf("| %d | %s |\n", n, statuses[n])
	}
	table += "| other | of `lock`, `elect` and `guard`: the status of COMMAND |\n"
	if !strings.Contains(text, table) {
		t.Errorf("the table of the statuses is not\n%s", table)
	}
	for _, m := range regexp.MustCompile("(?s)\n```yaml\n(.*?)```\n").FindAllStringSubmatch(text, -1) {
		var c config
		d := yaml.NewDecoder(bytes.NewReader([]byte(m[1])))
		d.KnownFields(true)
		if err := d.Decode(&c); err != nil || c.Contexts[c.Context].Servers == nil {
			t.Errorf("the config file: %v, %+v", err, c)
		}
	}
}

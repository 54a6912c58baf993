//go:build linux

package faulttest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord/internal/zklog"
)

// trial is a made-up log of one transaction that commits at the sites a and b, and the
// reports of its processes. The clocks agree, and the monotonic one is at zero when the wall
// clock is at trialStart.
type trial struct {
	steps   []zklog.Txn // named by their zxids, as below
	lines   []line
	partial bool // the log
}

// The steps of the trial.
const (
	made int64 = 0x10 + iota
	votesA
	votesB
	decides
	acksA
	acksB
	told
	removed
)

const (
	trialRecord   = "/commits/1/tx/t"
	trialDeadline = 60 // seconds after trialStart
)

var trialStart = time.UnixMilli(1_000_000_000_000)

func trialOp(kind int32, path, data string) zklog.Op {
	op := zklog.Op{Type: kind, Path: path, Data: []byte(data)}
	if kind == zklog.SetData {
		op.Version = 1
	}
	return op
}

func newTrial() *trial {
	const (
		record, open, live = trialRecord, trialRecord + "/open-m", trialRecord + "/live-x"
		decision           = trialRecord + "/decision-10"
	)
	branch := func(site string) string { return "/commits/1/sites/" + site + "/t~m" }
	yes := func(site string) string { return trialRecord + "/yes-10-" + site }
	lock := func(site string) string { return "/commits/1/serving/" + site + "/lock" }
	liveNode := trialOp(zklog.Create2, live, "")
	liveNode.Ephemeral = true
	data := fmt.Sprintf(`{"mark":"m","sites":["a","b"],"deadline":%d}`, trialStart.Add(trialDeadline*time.Second).UnixMilli())
	x := &trial{}
	step := func(zxid int64, ops ...zklog.Op) {
		x.steps = append(x.steps, zklog.Txn{Zxid: zxid, Time: trialStart.Add(time.Duration(zxid-made) * time.Second), Type: zklog.Multi, Ops: ops})
	}
	vote := func(zxid int64, site string) {
		step(zxid, trialOp(zklog.Check, lock(site), ""), trialOp(zklog.Check, open, ""),
			trialOp(zklog.SetData, branch(site), "yes"), trialOp(zklog.Create2, yes(site), ""))
	}
	ack := func(zxid int64, site string) {
		step(zxid, trialOp(zklog.Check, lock(site), ""), trialOp(zklog.Delete, branch(site), ""), trialOp(zklog.Delete, yes(site), ""))
	}
	step(made, trialOp(zklog.Create2, record, data), trialOp(zklog.Create2, open, ""), liveNode,
		trialOp(zklog.Create2, branch("a"), ""), trialOp(zklog.Create2, branch("b"), ""))
	vote(votesA, "a")
	vote(votesB, "b")
	step(decides, trialOp(zklog.Check, yes("a"), ""), trialOp(zklog.Check, yes("b"), ""),
		trialOp(zklog.Create2, decision, `{"commit":true,"by":"proposer"}`))
	ack(acksA, "a")
	ack(acksB, "b")
	step(told, trialOp(zklog.Delete, live, ""), trialOp(zklog.Delete, open, ""))
	step(removed, trialOp(zklog.Delete, decision, ""), trialOp(zklog.Delete, record, ""))
	for _, site := range []string{"a", "b"} {
		x.say("prepare", site, 500*time.Millisecond)
		x.say("commit", site, 3500*time.Millisecond)
	}
	x.say("told", "commit", 4*time.Second)
	return x
}

func (x *trial) say(kind, text string, at time.Duration) {
	x.lines = append(x.lines, line{At: at, Kind: kind, Path: trialRecord, Token: made, Text: text})
}

func (x *trial) step(zxid int64) *zklog.Txn {
	return &x.steps[slices.IndexFunc(x.steps, func(s zklog.Txn) bool { return s.Zxid == zxid })]
}

// without removes operations from a step: those of a kind whose path contains path.
func (x *trial) without(zxid int64, kind int32, path string) {
	s := x.step(zxid)
	n := len(s.Ops)
	s.Ops = slices.DeleteFunc(s.Ops, func(op zklog.Op) bool { return op.Type == kind && strings.Contains(op.Path, path) })
	if len(s.Ops) == n {
		panic("no operation to remove")
	}
}

func (x *trial) drop(zxid int64) {
	x.steps = slices.DeleteFunc(x.steps, func(s zklog.Txn) bool { return s.Zxid == zxid })
}

// unsaid removes reports.
func (x *trial) unsaid(kind, text string) {
	x.lines = slices.DeleteFunc(x.lines, func(l line) bool { return l.Kind == kind && l.Text == text })
}

func (x *trial) add(zxid int64, ops ...zklog.Op) { x.step(zxid).Ops = append(x.step(zxid).Ops, ops...) }

// reduce leaves of the log what the record of etcd's members shows.
func (x *trial) reduce() {
	x.partial = true
	for i := range x.steps {
		s := &x.steps[i]
		s.Time, s.Session = time.Time{}, 0
		s.Ops = slices.DeleteFunc(slices.Clone(s.Ops), func(op zklog.Op) bool { return op.Type == zklog.Check })
	}
}

func (x *trial) judge() []string {
	h := newCommitHistory(commitRoot)
	h.partial = x.partial
	for _, s := range x.steps {
		h.apply(s)
	}
	for _, l := range x.lines {
		h.said(l, time.Duration(trialStart.UnixNano()), 2*time.Millisecond)
	}
	h.end()
	return h.faults
}

// again appends an equal second transaction.
func (x *trial) again() {
	rename := strings.NewReplacer("-10", "-20", "~m", "~n", "open-m", "open-n", `"m"`, `"n"`)
	for _, s := range slices.Clone(x.steps) {
		s.Zxid += 0x10
		s.Time = s.Time.Add(10 * time.Second)
		ops := slices.Clone(s.Ops)
		for i := range ops {
			ops[i].Path = rename.Replace(ops[i].Path)
			ops[i].Data = []byte(rename.Replace(string(ops[i].Data)))
		}
		s.Ops = ops
		x.steps = append(x.steps, s)
	}
	for _, l := range slices.Clone(x.lines) {
		l.Token += 0x10
		l.At += 10 * time.Second
		x.lines = append(x.lines, l)
	}
}

// decideInstead replaces the decision.
func (x *trial) decideInstead(data string) {
	s := x.step(decides)
	s.Ops = []zklog.Op{trialOp(zklog.Check, trialRecord+"/open-m", ""), trialOp(zklog.Create2, trialRecord+"/decision-10", data)}
	for i, l := range x.lines {
		switch {
		case l.Kind == "commit":
			x.lines[i].Kind = "abort"
		case l.Kind == "told":
			x.lines[i].Text = "abort"
		}
	}
}

func TestTheCheckerOfTheLogAcceptsValidLogs(t *testing.T) {
	for name, change := range map[string]func(x *trial){
		"a commit":         func(*trial) {},
		"a recovery":       func(x *trial) { x.decideInstead(`{"by":"recovery","reason":"its proposer is gone"}`) },
		"a proposer dead":  func(x *trial) { x.unsaid("told", "commit") },
		"commit two times": func(x *trial) { x.say("commit", "a", 3600*time.Millisecond) },
	} {
		x := newTrial()
		change(x)
		if faults := x.judge(); len(faults) > 0 {
			t.Errorf("%s: %q", name, faults)
		}
		x.reduce()
		if faults := x.judge(); len(faults) > 0 {
			t.Errorf("%s, in a partial log: %q", name, faults)
		}
	}
}

func TestTheCheckerOfTheLogCatchesEachDefect(t *testing.T) {
	branchA := "/commits/1/sites/a/t~m"
	// A partial log does not show them.
	hidden := []string{
		"a commit that does not check all votes", "an abort that does not check the open", "an abort before the deadline",
		"a vote that does not check the open", "a vote without the lock", "an acknowledgement without the lock",
		"a callback before the decision", "a callback after the acknowledgement", "a Prepare after the acknowledgement",
		"a decision without a report",
	}
	for name, tt := range map[string]struct {
		change func(x *trial)
		want   string // part of one of the faults
	}{
		"a commit without a vote":                   {func(x *trial) { x.drop(votesB) }, `commits at 0x13: b has voted ""`},
		"a commit that does not check all votes":    {func(x *trial) { x.without(decides, zklog.Check, "-b") }, `commits at 0x13: b has voted "yes", checked false`},
		"a second decision":                         {func(x *trial) { x.add(acksA, trialOp(zklog.Create2, trialRecord+"/decision-10", `{"by":"recovery"}`)) }, "is decided again"},
		"a decision of another transaction":         {func(x *trial) { x.step(decides).Ops[2].Path = trialRecord + "/decision-f" }, "is decided at"},
		"an abort that does not check the open":     {func(x *trial) { x.decideInstead(`{"by":"recovery"}`); x.without(decides, zklog.Check, "open") }, "without a check whether it is open"},
		"an abort before the deadline":              {func(x *trial) { x.decideInstead(`{"by":"site a","reason":"votes were missing at the deadline"}`) }, "aborts at its deadline 57s before that"},
		"an abort for a no without a vote":          {func(x *trial) { x.decideInstead(`{"by":"site a","reason":"no"}`) }, "which does not exist"},
		"a vote that does not check the open":       {func(x *trial) { x.without(votesA, zklog.Check, "open") }, "without a condition"},
		"a vote without the lock":                   {func(x *trial) { x.without(votesA, zklog.Check, "serving") }, "without a condition"},
		"a vote for another transaction":            {func(x *trial) { x.step(votesA).Ops[3].Path = trialRecord + "/yes-f-a" }, "is not a vote"},
		"a vote without its branch":                 {func(x *trial) { x.without(votesA, zklog.SetData, "") }, "without a condition"},
		"a branch without its vote":                 {func(x *trial) { x.without(votesA, zklog.Create2, "yes") }, "without a vote"},
		"a branch filled in again":                  {func(x *trial) { x.add(votesB, trialOp(zklog.SetData, branchA, "no\n")) }, `fills in its branch`},
		"a no that does not decide":                 {func(x *trial) { x.step(votesA).Ops[2].Data = []byte("no\nwhy") }, "without a decision"},
		"a site that aborts alone":                  {func(x *trial) { x.drop(votesA); x.drop(votesB); x.drop(decides) }, `a acknowledges`},
		"an acknowledgement without the lock":       {func(x *trial) { x.without(acksA, zklog.Check, "serving") }, "a acknowledges"},
		"an acknowledgement that leaves the vote":   {func(x *trial) { x.without(acksA, zklog.Delete, "yes") }, "a acknowledges"},
		"a record deleted before a site is done":    {func(x *trial) { x.drop(acksB) }, "before b has acknowledged"},
		"a record deleted before the report":        {func(x *trial) { x.drop(told) }, "open true"},
		"a record that stays":                       {func(x *trial) { x.drop(removed) }, "exists at the end"},
		"a transaction without a branch":            {func(x *trial) { x.without(made, zklog.Create2, "sites/b") }, "without a branch for b"},
		"a transaction without a live node":         {func(x *trial) { x.without(made, zklog.Create2, "live") }, "live false"},
		"a report before the decision":              {func(x *trial) { x.add(votesA, trialOp(zklog.Delete, trialRecord+"/open-m", "")) }, "before the decision"},
		"nothing at all":                            {func(x *trial) { x.steps, x.lines = nil, nil }, "no transaction"},
		"a proposer with another result":            {func(x *trial) { x.say("told", "abort", 4*time.Second) }, `reported "abort"`},
		"an abort at a site after a commit":         {func(x *trial) { x.say("abort", "a", 3600*time.Millisecond) }, "callbacks of a"},
		"a callback before the decision":            {func(x *trial) { x.say("commit", "a", 2900*time.Millisecond) }, "commit of"},
		"a callback after the acknowledgement":      {func(x *trial) { x.say("commit", "a", 4100*time.Millisecond) }, "100ms after its acknowledgement"},
		"the same transaction again":                {func(x *trial) { x.again() }, "was committed 2 times"},
		"a decision without a report":               {func(x *trial) { x.unsaid("told", "commit"); x.step(told).Session = 7 }, "no proposer was notified"},
		"a Prepare after the acknowledgement":       {func(x *trial) { x.say("prepare", "a", 4100*time.Millisecond) }, "100ms after its acknowledgement"},
		"an acknowledgement without a call":         {func(x *trial) { x.unsaid("commit", "a") }, "callbacks of a"},
		"a vote without a call of Prepare":          {func(x *trial) { x.unsaid("prepare", "b") }, "without a call of Prepare"},
		"a callback without a transaction":          {func(x *trial) { x.lines[0].Token = 7 }, "no such transaction"},
		"a live node that outlives its session":     {func(x *trial) { x.add(votesA, trialOp(zklog.Create2, trialRecord+"/live-y", "")) }, "not ephemeral"},
		"a write over the decision":                 {func(x *trial) { x.add(acksA, trialOp(zklog.SetData, trialRecord+"/decision-10", "")) }, "must not be changed"},
		"a branch that comes after its transaction": {func(x *trial) { x.add(votesA, trialOp(zklog.Create2, branchA, "")) }, "later than"},
	} {
		t.Run(name, func(t *testing.T) {
			x := newTrial()
			tt.change(x)
			faults := x.judge()
			if !slices.ContainsFunc(faults, func(f string) bool { return strings.Contains(f, tt.want) }) {
				t.Errorf("found %q, want %q", faults, tt.want)
			}
			x.reduce()
			if faults := x.judge(); (len(faults) == 0) != slices.Contains(hidden, name) {
				t.Errorf("in a partial log found %q", faults)
			}
		})
	}
}

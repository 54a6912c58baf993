//go:build linux

package chaos

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-coord/coord/internal/proc"
)

// An event is one line of a history. Each process has a file of its own and only appends to
// it, with one write for each line. So the lines of a killed process are kept.
//
//	begin    a call begins; N is its number
//	ok       the call N was applied
//	no       it was definitely not applied
//	unknown  it may have been applied
//	lost     a hold ended before it was released
//	beat     the process runs
//	state    of the session
//	told     a site of a transaction was called back, or a loop of the client has failed
//	older    a cache told of a state of a node (Num and Token are its Czxid and Mzxid) that is not
//	         later than one that it told of before (Since is the Mzxid)
//	write    of the resource: a write arrived
//	fault    of the nemesis: begin and end are calls
type event struct {
	At      int64  `json:"at"` // nanoseconds of the clock that all processes share
	Kind    string `json:"k"`
	N       int64  `json:"n,omitempty"`
	Work    string `json:"w,omitempty"`  // the workload
	Op      string `json:"op,omitempty"` // the operation
	ID      string `json:"id,omitempty"` // of an item, a transaction; the path of a hold
	Value   string `json:"v,omitempty"`
	Old     string `json:"old,omitempty"`
	Num     int64  `json:"i,omitempty"` // weight, delta, attempt, delay
	Token   int64  `json:"tok,omitempty"`
	Session int64  `json:"s,omitempty"`
	Since   int64  `json:"from,omitempty"` // the earliest time of a grant or of a loss, if that is not the time of the begin or of the event
	Err     string `json:"err,omitempty"`
	Odd     bool   `json:"odd,omitempty"` // the faults do not explain Err
}

func (e event) String() string {
	b, _ := json.Marshal(e)
	return string(b)
}

// recorder writes a history.
type recorder struct {
	mu    sync.Mutex
	f     *os.File
	now   func() int64
	calls atomic.Int64
}

func newRecorder(path string) (*recorder, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	return &recorder{f: f, now: func() int64 { return int64(proc.Now()) }}, nil
}

// say writes one event with the current time.
func (r *recorder) say(e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.At = r.now()
	line, err := json.Marshal(e)
	if err == nil {
		_, err = r.f.Write(append(line, '\n'))
	}
	if err != nil {
		panic(err) // without a history nothing is tested
	}
}

// begin records the begin of a call, and returns its event.
func (r *recorder) begin(e event) event {
	e.Kind, e.N = "begin", r.calls.Add(1)
	r.say(e)
	return e
}

// end records the outcome of a call.
func (r *recorder) end(e event, kind string, err error) {
	e.Kind = kind
	if err != nil {
		e.Err = err.Error()
	}
	r.say(e)
}

// forever is the return time of a call that never returned.
const forever = math.MaxInt64

// A call is a begin and its outcome.
type call struct {
	process  *process
	event           // with the fields of the end, if there was one
	from, to int64  // to is forever for a call without an end
	outcome  string // ok, no or unknown; unknown also for a call without an end
	settled  string // for an unknown outcome: "applied" or "not applied" by the servers' logs, "" if they do not show it
	zxid     int64  // of the transaction that applied it, if the logs were consulted
}

func (c *call) String() string {
	return fmt.Sprintf("%s [%d, %d] %s %s: %v", c.process.name, c.from, c.to, c.outcome, c.settled, c.event)
}

// happened reports whether the call was applied, as far as known.
func (c *call) happened() bool { return c.outcome == "ok" || c.settled == "applied" }

// process is one history.
type process struct {
	name   string
	events []event // in order
	calls  []*call // in the order of their begins
	ended  int64   // the time of its last event
	gaps   []gap   // times in which it did not run
}

// gap is a time in which a process did not run, by its own beats: it was stopped, or the
// machine was overloaded.
type gap struct{ from, to int64 }

// The beats of a process come every beatEvery. If they are missing for longer than
// mostSilence, the process did not run. That is less than the reserve that a LossMargin of
// (syncLimit + 2) ticks leaves a process that runs.
const (
	beatEvery   = 100 * time.Millisecond
	mostSilence = 500 * time.Millisecond
)

func readHistories(dir string) (list []*process, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	slices.Sort(files)
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		name := strings.TrimSuffix(filepath.Base(file), ".jsonl")
		p, err := parseHistory(name, b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		list = append(list, p)
	}
	return list, nil
}

// parseHistory reads one file. The last line can be cut short by a kill.
func parseHistory(name string, b []byte) (*process, error) {
	p := &process{name: name}
	for line := range bytes.Lines(b) {
		if line[len(line)-1] != '\n' {
			break
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		p.events = append(p.events, e)
	}
	return p, p.digest()
}

// digest pairs begins with ends, and finds the times in which the process did not run.
func (p *process) digest() error {
	byNumber := make(map[int64]*call)
	last := int64(0)
	for _, e := range p.events {
		if e.At < p.ended {
			return fmt.Errorf("the clock goes back at %v", e)
		}
		p.ended = e.At
		if e.Kind == "beat" {
			if last > 0 && e.At-last > int64(mostSilence) {
				p.gaps = append(p.gaps, gap{last, e.At})
			}
			last = e.At
		}
		switch e.Kind {
		case "begin":
			c := &call{process: p, event: e, from: e.At, to: forever, outcome: "unknown"}
			byNumber[e.N] = c
			p.calls = append(p.calls, c)
		case "ok", "no", "unknown":
			c := byNumber[e.N]
			if c == nil || c.to != forever {
				return fmt.Errorf("an end without a call: %v", e)
			}
			c.event, c.outcome = e, e.Kind
			if e.Kind != "unknown" {
				c.to = e.At
			}
		}
	}
	return nil
}

// callsOf returns the calls of a workload, restricted to the given operations, of all
// processes, in the order of their begins.
func callsOf(all []*process, work string, ops ...string) (list []*call) {
	for _, p := range all {
		for _, c := range p.calls {
			if c.Work == work && (len(ops) == 0 || slices.Contains(ops, c.Op)) {
				list = append(list, c)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b *call) int { return int(min(1, max(-1, a.from-b.from))) })
	return list
}

package layout

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The names of the nodes of a Schedule: its state, and the directory of the candidates for leadership.
const (
	StateName  = "schedule-state"
	LeaderName = "leader"
)

// runPrefix begins the name of the node of a claim. The planned time, the attempt and a GUID follow.
const runPrefix = "run-"

// RunName returns the name of the node of a claim.
func RunName(planned int64, attempt int, guid string) string {
	return runPrefix + strconv.FormatInt(planned, 10) + "-" + strconv.Itoa(attempt) + "-" + guid
}

// IsRun reports whether a name is that of the node of a claim.
func IsRun(name string) bool {
	rest, ok := strings.CutPrefix(name, runPrefix)
	return ok && len(rest) > GUIDLen && IsGUID(rest[len(rest)-GUIDLen:]) && Speakable(name)
}

// Bounds of the data of a Schedule.
const (
	MaxHistory  = 100 // ended runs
	MaxAsked    = 100
	maxRunning  = 1000
	maxRanges   = 16
	mostPlanned = MaxDeadline
)

// ScheduleState is the data of the state of a Schedule. Times are in milliseconds since 1970.
type ScheduleState struct {
	Since   int64         `json:"since"` // planned times up to it are not missed
	Paused  bool          `json:"paused,omitempty"`
	Claimed []TimeRange   `json:"claimed,omitempty"` // in order, without overlap
	Asked   []int64       `json:"asked,omitempty"`   // in order
	Runs    []ScheduleRun `json:"runs,omitempty"`    // in the order of their claims
}

// A TimeRange is the first and the last of planned times that must not be claimed again.
type TimeRange [2]int64

// ScheduleRun is the record of a run.
type ScheduleRun struct {
	Planned int64  `json:"planned"`
	Asked   bool   `json:"asked,omitempty"`
	Attempt int    `json:"attempt"`
	Missed  int    `json:"missed,omitempty"` // planned times that its first claim has left out
	Node    string `json:"node"`             // the name of the claim
	ID      string `json:"id,omitempty"`
	Began   int64  `json:"began"`
	Took    int64  `json:"took,omitempty"` // milliseconds
	Outcome string `json:"outcome,omitempty"`
	Error   string `json:"error,omitempty"`
	Again   bool   `json:"again,omitempty"` // another claim is due
	Ended   int64  `json:"ended,omitempty"` // grows from one end to the next
}

// Lasts reports whether the run has no outcome.
func (r *ScheduleRun) Lasts() bool { return r.Outcome == "" }

// ParseScheduleState decodes the state. Data with values that no version writes is ErrDecode too.
func ParseScheduleState(data []byte) (ScheduleState, error) {
	var s ScheduleState
	if err := json.Unmarshal(data, &s); err != nil || !s.sane() {
		return ScheduleState{}, fmt.Errorf("%w: not the state of a schedule", ErrDecode)
	}
	return s, nil
}

func (s *ScheduleState) sane() bool {
	isTime := func(t int64) bool { return t > 0 && t <= mostPlanned }
	if !isTime(s.Since) || len(s.Claimed) > maxRanges || len(s.Asked) > MaxAsked || len(s.Runs) > MaxHistory+maxRunning {
		return false
	}
	last := int64(0)
	for _, r := range s.Claimed {
		if !isTime(r[0]) || !isTime(r[1]) || r[0] <= last || r[1] < r[0] {
			return false
		}
		last = r[1]
	}
	for i, at := range s.Asked {
		if !isTime(at) || i > 0 && at <= s.Asked[i-1] {
			return false
		}
	}
	return !slices.ContainsFunc(s.Runs, func(r ScheduleRun) bool {
		return !isTime(r.Planned) || r.Attempt < 1 || r.Missed < 0 || !IsRun(r.Node) || r.Took < 0 || !isTime(r.Began) || r.Ended < 0 || r.Again && r.Lasts()
	})
}

// Encode returns the data of the node.
func (s *ScheduleState) Encode() ([]byte, error) { return json.Marshal(s) }

// Clone returns a copy that shares nothing with s.
func (s *ScheduleState) Clone() ScheduleState {
	c := *s
	c.Claimed, c.Asked, c.Runs = slices.Clone(s.Claimed), slices.Clone(s.Asked), slices.Clone(s.Runs)
	return c
}

// Claim adds a planned time to the ranges. If follows is not zero, it is the planned time before it. Claim
// reports false if a range has the time already. Of too many ranges the first two become one: the planned times between
// them are the oldest, and were left out.
func (s *ScheduleState) Claim(planned, follows int64) bool {
	i := 0
	for i < len(s.Claimed) && s.Claimed[i][1] < planned {
		i++
	}
	switch {
	case i < len(s.Claimed) && s.Claimed[i][0] <= planned:
		return false
	case i > 0 && s.Claimed[i-1][1] == follows:
		s.Claimed[i-1][1] = planned
		return true
	}
	s.Claimed = slices.Insert(s.Claimed, i, TimeRange{planned, planned})
	if len(s.Claimed) > maxRanges {
		s.Claimed[1][0] = s.Claimed[0][0]
		s.Claimed = slices.Delete(s.Claimed, 0, 1)
	}
	return true
}

// End gives a run its outcome, as the one that has ended last.
func (s *ScheduleState) End(r *ScheduleRun, outcome string) {
	r.Outcome, r.Ended = outcome, 1
	for i := range s.Runs {
		if o := &s.Runs[i]; o != r {
			r.Ended = max(r.Ended, o.Ended+1)
		}
	}
}

// Trim forgets ended runs, until only the latest history of them are left. It keeps each run that is to be claimed again.
func (s *ScheduleState) Trim(history int) {
	var ended []int64
	for i := range s.Runs {
		if r := &s.Runs[i]; !r.Lasts() && !r.Again {
			ended = append(ended, r.Ended)
		}
	}
	if len(ended) <= history {
		return
	}
	slices.Sort(ended)
	first := ended[len(ended)-history]
	s.Runs = slices.DeleteFunc(s.Runs, func(r ScheduleRun) bool { return !r.Lasts() && !r.Again && r.Ended < first })
}

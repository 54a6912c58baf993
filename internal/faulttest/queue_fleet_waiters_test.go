//go:build linux

package faulttest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/zklog"
)

// waiters returns, for a failure, the slots and waiters of a queue when a wait began, with their
// processes, and the changes until it ended: of these nodes, of sessions, and the times in which
// processes did not run. All times are since the wait began.
func (f *fleet) waiters(log []zklog.Txn, w wait) string {
	dir := map[string]string{"q": f.path, "d": f.delayed}[w.lane] + "/waiters/"
	since := func(at time.Duration) time.Duration { return (at - w.at.from).Round(time.Millisecond) }
	owners, fates := make(map[int64]string), make(map[int64]string)
	var stalls strings.Builder
	for _, a := range f.all {
		var last int64
		for _, l := range a.Reports() {
			switch {
			case l.Kind == "phase" && l.Session != 0:
				last = l.Session
				owners[last] = a.name
				if l.Text == coord.PhaseLost.String() {
					fates[last] += fmt.Sprintf(", lost at %v", since(l.At))
				}
			case l.Kind == "gap" && l.At > w.at.from && l.At-l.Delay < w.at.to:
				fmt.Fprintf(&stalls, "\n%v to %v: %s did not run", since(l.At-l.Delay), since(l.At), a.name)
			}
		}
		if at, dead := f.died[a]; dead {
			fates[last] += fmt.Sprintf(", killed at %v", since(at))
		}
	}
	type node struct {
		name    string
		session int64
		at      time.Duration
	}
	var nodes []node
	var changes strings.Builder
	for _, x := range log {
		at := f.monotonicOf(x.Time)
		inside := at >= w.at.from && at < w.at.to
		if x.Type == zklog.CloseSession {
			fates[x.Session] += fmt.Sprintf(", ended at %v", since(at))
			if inside {
				fmt.Fprintf(&changes, "\n%v: session %x of %s ended", since(at), x.Session, owners[x.Session])
			}
		}
		for _, op := range x.Ops {
			name, ok := strings.CutPrefix(op.Path, dir)
			verb := "deleted"
			switch {
			case !ok || !op.IsCreate() && !op.IsDelete():
				continue
			case op.IsCreate():
				verb = "made"
			}
			switch {
			case inside:
				fmt.Fprintf(&changes, "\n%v: %s %s by session %x of %s", since(at), name, verb, x.Session, owners[x.Session])
			case at < w.at.from && op.IsCreate():
				nodes = append(nodes, node{name, x.Session, at})
			case at < w.at.from:
				nodes = slices.DeleteFunc(nodes, func(n node) bool { return n.name == name })
			}
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "the waiters of queue %s when the wait of %s began:", w.lane, w.item)
	for _, n := range nodes {
		fmt.Fprintf(&b, "\n%s since %v: session %x of %s%s", n.name, since(n.at), n.session, owners[n.session], fates[n.session])
	}
	fmt.Fprintf(&b, "\nuntil it ended at %v:%s%s", since(w.at.to), changes.String(), stalls.String())
	return b.String()
}

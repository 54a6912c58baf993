package backendtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-coord/coord/backend"
)

// An observation is the record of one step.
type observation struct {
	text  strings.Builder
	zxids []int64 // in the order of their appearance
}

func (o *observation) addf(format string, args ...any) { fmt.Fprintf(&o.text, format, args...) }

// short returns a path relative to the root of the service. If numbers are not compared, it has
// the order of the creation in place of each.
func (p *player) short(path string) string {
	if path == p.svc.Root() {
		return "/"
	}
	short := strings.TrimPrefix(path, strings.TrimSuffix(p.svc.Root(), "/"))
	if !p.unlike.numbers {
		return short
	}
	for i, known := range p.sequential {
		if rest, ok := strings.CutPrefix(path, known); ok && (rest == "" || rest[0] == '/') {
			return fmt.Sprintf("%s<%d>%s", strings.TrimRight(p.prefixes[i], "/"), i, rest)
		}
	}
	return short
}

// names returns the names of children in the form in which Differ compares them, in order.
func (p *player) names(parent string, names []string) []string {
	if p.unlike.numbers {
		paths := make([]string, len(names))
		for i, name := range names {
			paths[i] = below(parent, name)
		}
		p.learn(paths)
		for i, path := range paths {
			names[i] = p.short(path)
		}
	}
	slices.Sort(names)
	return names
}

// learn records the sequential nodes of commits whose outcome was uncertain, by the order of their
// numbers.
func (p *player) learn(paths []string) {
	if !p.unlike.numbers {
		return
	}
	type numbered struct {
		path   string
		number int
	}
	var fresh []numbered
	for _, path := range paths {
		prefix := strings.TrimRight(path, "0123456789")
		number, err := strconv.Atoi(path[len(prefix):])
		if err == nil && len(path)-len(prefix) >= 10 && !slices.Contains(p.sequential, path) {
			fresh = append(fresh, numbered{path, number})
		}
	}
	slices.SortFunc(fresh, func(a, b numbered) int { return a.number - b.number })
	for _, n := range slices.Compact(fresh) {
		p.sequential, p.prefixes = append(p.sequential, n.path), append(p.prefixes, p.short(strings.TrimRight(n.path, "0123456789")))
	}
}

// stat records the Stat of a node, or that the node is missing.
func (p *player) stat(o *observation, s backend.Stat, there bool) {
	if !there {
		if s != (backend.Stat{}) {
			o.addf("stat %+v of nothing", s)
		}
		o.addf("\n")
		return
	}
	if p.unlike.advisory {
		s.Pzxid, s.Cversion = s.Czxid, 0
	}
	o.zxids = append(o.zxids, s.Czxid, s.Mzxid, s.Pzxid)
	o.addf("version %d cversion %d owner %d length %d children %d\n",
		s.Version, s.Cversion, p.opened[s.EphemeralOwner], s.DataLength, s.NumChildren)
	if s.EphemeralOwner != 0 && p.opened[s.EphemeralOwner] == 0 {
		o.addf("unknown owner %d\n", s.EphemeralOwner)
	}
}

// sentinels are the errors of the contract by name.
func sentinels() []struct {
	name string
	err  error
} {
	return []struct {
		name string
		err  error
	}{
		{"not found", backend.ErrNotFound}, {"exists", backend.ErrExists}, {"bad version", backend.ErrBadVersion},
		{"not empty", backend.ErrNotEmpty}, {"no children", backend.ErrNoChildren}, {"session lost", backend.ErrSessionLost},
		{"closed", backend.ErrClosed}, {"uncertain", backend.ErrUncertain}, {"too large", backend.ErrTooLarge},
		{"denied", backend.ErrDenied}, {"bad path", backend.ErrBadPath}, {"unsupported", backend.ErrUnsupported},
		{"invalid", backend.ErrInvalid}, {"deadline", context.DeadlineExceeded}, {"canceled", context.Canceled},
	}
}

// tell records an error: the errors of the contract that it matches, and the operation that it names.
func (p *player) tell(o *observation, err error) {
	if err == nil {
		p.counts["success"]++
		return
	}
	o.addf("error:")
	known := false
	for _, s := range sentinels() {
		if errors.Is(err, s.err) {
			known = true
			o.addf(" %s", s.name)
			p.counts["error: "+s.name]++
		}
	}
	if !known {
		o.addf(" unknown %v", err)
	}
	var e *backend.Error
	if errors.As(err, &e) && !errors.Is(err, backend.ErrUncertain) {
		o.addf(" of %s %s [%d]", e.Op, p.short(e.Path), e.Index)
	}
	o.addf("\n")
}

// picture records the whole tree of the service.
func (p *player) picture() *observation {
	o := new(observation)
	ctx, cancel := context.WithTimeout(p.ctx, p.limit)
	defer cancel()
	s, err := p.svc.Link("observer").Open(ctx)
	if err != nil {
		o.addf("open: %v\n", err)
		return o
	}
	defer s.Close()
	if err := s.Sync(ctx, "/"); err != nil {
		o.addf("sync: %v\n", err)
	}
	p.draw(ctx, o, s, p.svc.Root())
	return o
}

// draw records a node and its subtree.
func (p *player) draw(ctx context.Context, o *observation, s backend.Session, path string) {
	data, stat, err := s.Get(ctx, path, nil)
	if err != nil {
		p.tell(o, err)
		return
	}
	o.addf("%s %s ", p.short(path), brief(string(data)))
	p.stat(o, stat, true)
	names, _, err := s.Children(ctx, path, nil)
	if err != nil {
		p.tell(o, err)
		return
	}
	p.names(path, slices.Clone(names))
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(p.short(below(path, a)), p.short(below(path, b))) })
	for _, name := range names {
		p.draw(ctx, o, s, below(path, name))
	}
}

func below(dir, name string) string { return strings.TrimSuffix(dir, "/") + "/" + name }

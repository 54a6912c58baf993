// Package live keeps a view of the recipes at and below a path current, for the commands top and
// ui. It adds to what package inspect reads what only time shows: rates, turns and histories.
package live

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/inspect"
	"github.com/go-coord/coord/internal/layout"
	"golang.org/x/sync/errgroup"
)

// Options may be nil.
type Options struct {
	Data     bool          // as in inspect.Options
	MaxReads int           // of one survey, as in inspect.Options
	Interval time.Duration // the least time between two reads; default 1 s

	// Poll surveys the whole tree at each interval instead of following it with a watch. A
	// watch costs a message for each change below the path.
	Poll bool
}

const (
	defaultInterval = time.Second
	pollFactor      = 2                // without a watch surveys are rarer
	tick            = 2 * time.Second  // the longest time between two snapshots
	resurvey        = 60 * time.Second // finds what no watch reports: a permission that has changed
	mostRoots       = 64               // paths that are read again one by one; of more the whole tree is
	treesAtOnce     = 8
	watchLimit      = 1 << 16
)

// A Model is a live view. Run keeps it current; the other methods read it and are safe for
// concurrent use.
//
// Cost, if the service has trees: one watch, a survey of the whole tree at the start, after each
// reconnection and once a minute, and otherwise for each recipe in which something has changed
// one description in each interval. A tree in which nothing changes costs no request. Without
// trees, or with Poll: a survey of the whole tree every second interval.
type Model struct {
	c    *coord.Client
	path string // as the client names it
	full string
	ns   layout.Namespace
	o    Options

	mu      sync.Mutex
	entries map[string]*entry
	dirs    map[string]bool
	session Session
	last    pass
	number  uint64
	snap    *Snapshot
	changed chan struct{}
}

// A pass is what the latest reads were.
type pass struct {
	at        time.Time
	took      time.Duration
	reads     int
	truncated bool
	notes     []string
	err       error
	watched   bool
	passes    int
}

// New returns a Model of what is at and below the path, which may be "/". It does no I/O.
func New(c *coord.Client, path string, o *Options) (*Model, error) {
	m := &Model{c: c, path: path, entries: make(map[string]*entry), dirs: make(map[string]bool), changed: make(chan struct{})}
	if o != nil {
		m.o = *o
	}
	m.o.Interval = cmp.Or(m.o.Interval, defaultInterval)
	var err error
	if m.full, m.ns, err = layout.Place(c.FullPath, path); err != nil {
		return nil, err
	}
	m.session = Session{Phase: coord.PhaseConnected.String(), Since: time.Now()}
	m.snap = &Snapshot{Path: m.full, Namespace: string(m.ns), Rows: []*Row{}, Session: m.session}
	return m, nil
}

// Rel returns the path that the client uses for an absolute path of a Row.
func (m *Model) Rel(path string) string { return m.ns.Rel(path) }

// Snapshot returns the present view, and a channel that is closed when there is a newer one. The
// view is not to be changed.
func (m *Model) Snapshot() (*Snapshot, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.snap, m.changed
}

// Run keeps the view current until ctx ends, over lost contact and lost sessions. It returns the
// error of ctx, or one that no later attempt can mend: a bad path, or a closed client.
func (m *Model) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var states sync.WaitGroup
	defer states.Wait()
	defer stop()
	ch := m.c.WatchState(ctx)
	states.Go(func() {
		for st := range ch {
			m.setState(st)
		}
	})
	for ctx.Err() == nil {
		err := m.follow(ctx)
		switch {
		case errors.Is(err, coord.ErrClosed), errors.Is(err, coord.ErrBadPath), errors.Is(err, coord.ErrInvalid):
			return err
		case ctx.Err() != nil || err == nil:
			continue
		}
		m.mu.Lock()
		m.last.err = err
		m.publishLocked()
		m.mu.Unlock()
		sleep(ctx, m.o.Interval)
	}
	return context.Cause(ctx)
}

func (m *Model) setState(st coord.State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := Session{Phase: st.Phase.String(), Since: time.Now()}
	if st.Session != 0 {
		s.ID = sessionText(st.Session)
	}
	if st.Err != nil {
		s.Err = st.Err.Error()
	}
	if m.session.Phase == s.Phase && m.session.ID == s.ID {
		s.Since = m.session.Since
	}
	m.session = s
	m.publishLocked()
}

// follow keeps the view current with one watch. It returns nil if the watch or the session is over.
func (m *Model) follow(ctx context.Context) error {
	s, err := m.c.Session(ctx)
	if err != nil {
		return err
	}
	w := backend.NewTreeWatch(watchLimit)
	defer w.Stop()
	watched := !m.o.Poll && s.Features().Has(backend.Trees)
	if watched {
		switch err := s.WatchTree(ctx, m.full, w); {
		case errors.Is(err, backend.ErrUnsupported):
			watched = false
		case errors.Is(err, backend.ErrSessionLost):
			return nil
		case err != nil:
			return err
		}
	}
	m.mu.Lock()
	m.last.watched = watched
	m.mu.Unlock()
	whole := true // the whole tree has to be read
	var surveyed time.Time
	for {
		began := time.Now()
		changes, over := w.Take()
		if over {
			return nil
		}
		m.note(changes)
		roots := m.dirty(changes)
		if !watched || whole || len(roots) > mostRoots || began.Sub(surveyed) >= resurvey {
			roots, whole, surveyed = []string{m.full}, false, began
		}
		if err := m.read(ctx, roots); err != nil {
			return err
		}
		pause := max(m.o.Interval, time.Since(began)) // at most half of the time is spent on reads
		if !watched {
			pause *= pollFactor
		}
		if err := m.wait(ctx, s, w, watched, began.Add(pause), surveyed.Add(resurvey)); err != nil || s.Err() != nil {
			return err // nil if the session is over
		}
	}
}

// wait returns when the next reads are due: not before next, and when something has changed, an
// item is due, or a survey of the whole tree is. Meanwhile it publishes snapshots, because ages and
// rates change without reads.
func (m *Model) wait(ctx context.Context, s backend.Session, w *backend.TreeWatch, watched bool, next, survey time.Time) error {
	least := time.NewTimer(time.Until(next))
	defer least.Stop()
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	due := time.NewTimer(time.Until(m.nextDue(survey)))
	defer due.Stop()
	ready, may := w.Ready(), false
	var fired, overdue bool
	for {
		if may && (fired || overdue || !watched) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.Done():
			return nil
		case <-least.C:
			may = true
		case <-ready:
			fired, ready = true, nil
		case <-due.C:
			overdue = true
		case <-ticks.C:
			m.mu.Lock()
			m.publishLocked()
			m.mu.Unlock()
		}
	}
}

// nextDue returns when a delayed item can be taken: its queue then has to be read again. It is
// not after limit.
func (m *Model) nextDue(limit time.Time) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.entries {
		if q := e.report.Queue; q != nil && !q.NextDue.IsZero() && q.NextDue.Before(limit) {
			limit = q.NextDue
		}
	}
	return limit
}

// dirty returns the paths to read again, none of which is below another one. Queues whose
// delayed items have become due are among them.
func (m *Model) dirty(changes []backend.TreeChange) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	set := make(map[string]bool)
	for _, c := range changes {
		if root, ok := m.dirtyLocked(c); ok {
			set[root] = true
		}
	}
	now := time.Now()
	for path, e := range m.entries {
		if q := e.report.Queue; q != nil && !q.NextDue.IsZero() && !now.Before(q.NextDue) {
			set[path] = true
		}
	}
	var roots []string
	for path := range set {
		above := path
		for above != "" && above != "/" {
			if above = parent(above); set[above] {
				break
			}
		}
		if above == "" || above == "/" && !set["/"] || path == "/" {
			roots = append(roots, path)
		}
	}
	slices.Sort(roots)
	return roots
}

// dirtyLocked returns the path to read again because of a change.
func (m *Model) dirtyLocked(c backend.TreeChange) (root string, ok bool) {
	if path := m.Rel(c.Path); path != "/" {
		if _, err := m.c.FullPath(path); err != nil {
			return "", false // what the service or the library keeps for itself
		}
	}
	if dir := parent(c.Path); c.Kind == backend.TreeDeleted && c.Path != m.full && m.dirs[dir] && !m.othersLocked(c.Path) {
		return dir, true // which is a directory no more
	}
	for path := c.Path; len(path) >= len(m.full) && path != ""; path = parent(path) {
		if m.entries[path] != nil {
			return path, true
		}
		if path == "/" {
			break
		}
	}
	if c.Kind == backend.TreeChanged && m.dirs[c.Path] {
		return "", false // the data of a directory is not shown
	}
	return c.Path, true
}

// othersLocked reports whether the directory of path has other nodes than path.
func (m *Model) othersLocked(path string) bool {
	dir := strings.TrimSuffix(parent(path), "/") + "/"
	other := func(p string) bool {
		return strings.HasPrefix(p, dir) && p != path && !strings.HasPrefix(p, path+"/") && p != dir
	}
	for p := range m.entries {
		if other(p) {
			return true
		}
	}
	for p := range m.dirs {
		if other(p) {
			return true
		}
	}
	return false
}

// read surveys the roots, and publishes what has come of it.
func (m *Model) read(ctx context.Context, roots []string) error {
	if len(roots) == 0 {
		m.mu.Lock()
		m.publishLocked()
		m.mu.Unlock()
		return nil
	}
	began := time.Now()
	surveys := make([]*inspect.Survey, len(roots))
	all, some := errgroup.WithContext(ctx)
	all.SetLimit(treesAtOnce)
	for i, root := range roots {
		all.Go(func() (err error) {
			surveys[i], err = inspect.Tree(some, m.c, m.Rel(root), &inspect.Options{Data: m.o.Data, MaxReads: m.o.MaxReads})
			if errors.Is(err, coord.ErrDenied) && root != m.full {
				surveys[i], err = &inspect.Survey{Path: root, At: began, Notes: []string{"no permission to read " + root}}, nil
			}
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	l := &m.last
	*l = pass{at: time.Now(), took: time.Since(began), watched: l.watched, passes: l.passes + 1, truncated: l.truncated, notes: l.notes}
	for i, v := range surveys {
		if roots[i] == m.full {
			l.truncated, l.notes = false, nil
		}
		l.reads += v.Reads
		l.truncated = l.truncated || v.Truncated
		for _, note := range v.Notes {
			if !slices.Contains(l.notes, note) {
				l.notes = append(slices.Clip(l.notes), note)
			}
		}
		m.mergeLocked(roots[i], v)
	}
	m.publishLocked()
	return nil
}

// mergeLocked replaces what is known at and below root.
func (m *Model) mergeLocked(root string, v *inspect.Survey) {
	found := make(map[string]bool, len(v.Reports))
	for _, in := range v.Reports {
		found[in.Path] = true
		e := m.entries[in.Path]
		if e == nil || e.report.Recipe != in.Recipe {
			e = &entry{}
			m.entries[in.Path] = e
		}
		e.update(in)
	}
	for path := range m.entries {
		if isBelow(path, root) && !found[path] {
			delete(m.entries, path)
		}
	}
	for path := range m.dirs {
		if isBelow(path, root) {
			delete(m.dirs, path)
		}
	}
	for _, path := range v.Directories {
		m.dirs[path] = true
	}
}

// publishLocked makes the next snapshot.
func (m *Model) publishLocked() {
	now := time.Now()
	l := &m.last
	m.number++
	v := &Snapshot{
		Number: m.number, Path: m.full, Namespace: string(m.ns), At: now.UTC(), Session: m.session, Ready: l.passes > 0, Watched: l.watched,
		Read: l.at.UTC(), Took: l.took, Reads: l.reads, Passes: l.passes, Truncated: l.truncated, Notes: l.notes, Directories: len(m.dirs),
		Rows: make([]*Row, 0, len(m.entries)),
	}
	if l.err != nil {
		v.Err, v.Cause = l.err.Error(), l.err
	}
	for _, e := range m.entries {
		v.Rows = append(v.Rows, e.row(now, l.watched))
	}
	slices.SortFunc(v.Rows, func(a, b *Row) int { return ComparePaths(a.Path, b.Path) })
	v.Cycles = cycles(v.Rows)
	m.snap = v
	close(m.changed)
	m.changed = make(chan struct{})
}

// ComparePaths orders paths such that those below a path follow it.
func ComparePaths(a, b string) int {
	return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/"))
}

// isBelow reports whether path is at or below root.
func isBelow(path, root string) bool {
	return path == root || strings.HasPrefix(path, strings.TrimSuffix(root, "/")+"/")
}

// parent returns the path of the directory of a node; that of the root is "".
func parent(path string) string {
	i := strings.LastIndexByte(path, '/')
	switch {
	case path == "/" || i < 0:
		return ""
	case i == 0:
		return "/"
	}
	return path[:i]
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

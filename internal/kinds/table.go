package kinds

import (
	"sync"

	"github.com/go-coord/coord/backend"
)

// Table is a client's knowledge of recipe directories, by path. It is safe for concurrent use.
type Table struct {
	mu      sync.Mutex
	session int64 // the number of the client's session
	states  map[string]DirState
}

// Begin forgets the states that earlier sessions have found. session is the number of the new session, see
// core.Session.Number.
func (t *Table) Begin(session int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.session, t.states = session, nil
}

// Known returns the state of g. ok is false if the client knows none, or if it knows another kind there, since
// the directory can have been replaced.
func (t *Table) Known(g RecipeDir) (f DirState, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f, ok = t.states[g.Dir]
	return f, ok && f.Kind == g.Recipe
}

// Set records the state that a session has found. Set, LeaveData and Overwrite record nothing for a session that is
// over: the service can have been restored from a backup, and its numbers can belong to another history.
func (t *Table) Set(session int64, dir string, f DirState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.set(session, dir, f)
}

// set is Set for a caller that holds the mutex.
func (t *Table) set(session int64, dir string, f DirState) {
	if t.session == session {
		Remember(&t.states, dir, f)
	}
}

// Forget forgets the directory.
func (t *Table) Forget(dir string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.states, dir)
}

// LeaveData records that the session must not write the data of g.
func (t *Table) LeaveData(session int64, g RecipeDir) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := DirState{Kind: g.Recipe}
	if was := t.states[g.Dir]; was.Kind == g.Recipe {
		now.Czxid = was.Czxid
	}
	t.set(session, g.Dir, now)
}

// Overwrite records that the next creation in g replaces foreign data, which the session read with stat.
func (t *Table) Overwrite(session int64, g RecipeDir, f DirState, stat backend.Stat) {
	f.Version, f.zxid, f.foreign = stat.Version, stat.AsOf, true
	t.mu.Lock()
	defer t.mu.Unlock()
	t.set(session, g.Dir, f)
}

// Wrote records the Stat of the directory after a commit of the session that carried the mark and created the
// node with number seq. foreign reports that another program had written the data before. anew
// reports that the caller must examine the directory: the known directory was deleted and created again, so
// the mark may have overwritten that of another kind, or the client has forgotten the directory
// meanwhile. Then Wrote records nothing. The caller records now with Confirm after the examination.
func (t *Table) Wrote(session int64, g RecipeDir, seq int64, dir backend.Stat) (now DirState, anew, foreign bool) {
	now = DirState{
		Kind: g.Recipe, Version: backend.AnyVersion, Czxid: dir.Czxid,
		drift: int64(dir.Version) - seq - 1, zxid: dir.Mzxid,
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	was, ok := t.states[g.Dir]
	switch {
	case !ok || was.Kind != now.Kind || t.session != session:
		// The path was refused, forgotten, or used as another kind before the reply arrived.
		// A call that has learned the directory since knows more than this reply.
		return DirState{}, true, false
	case was.zxid >= now.zxid || was.Mark == nil:
		return now, false, false // a late reply
	}
	foreign = was.Czxid == now.Czxid && (now.drift > was.drift || was.foreign)
	if !foreign {
		now.Mark = was.Mark
	}
	// Of a directory that this client created, the czxid can be unknown. If the node is
	// alone in it, it has no nodes of another kind.
	if anew = was.Czxid != now.Czxid && (was.Czxid != 0 || dir.NumChildren != 1); !anew {
		t.states[g.Dir] = now
	}
	return now, anew, foreign
}

// Confirm records now, which Wrote returned, after the examination of the directory. It records nothing if now
// is zero.
func (t *Table) Confirm(session int64, g RecipeDir, now DirState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if was := t.states[g.Dir]; t.session == session && was.Kind == now.Kind && was.Mark != nil && was.zxid < now.zxid {
		t.states[g.Dir] = now
	}
}

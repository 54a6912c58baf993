package kinds

import (
	"fmt"
	"testing"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

func TestTable(t *testing.T) {
	g := NewRecipeDir("/lock", layout.KindMutex)
	mark := layout.KindMutex.Mark()
	// As after 4 creations, by a client that has found the mark of its kind.
	at := func(version, created int32, zxid int64) backend.Stat {
		return backend.Stat{Czxid: 7, Version: version, Cversion: 2*created - 1, NumChildren: 1, Mzxid: zxid, AsOf: zxid}
	}
	found := func() DirState {
		f := Found(g, at(4, 4, 20))
		f.Mark, f.Version = mark, backend.AnyVersion
		return f
	}
	other := at(5, 5, 21)
	other.Czxid, other.NumChildren = 8, 3
	alone := other
	alone.NumChildren = 1
	for name, c := range map[string]struct {
		before        func(tab *Table)
		session       int64
		dir           backend.Stat
		anew, foreign bool
		known, marked bool // afterwards
	}{
		"the next creation":                     {session: 1, dir: at(5, 5, 21), known: true, marked: true},
		"a foreign write before it":             {session: 1, dir: at(6, 5, 22), foreign: true, known: true},
		"a late reply":                          {session: 1, dir: at(4, 4, 19), known: true, marked: true},
		"another directory":                     {session: 1, dir: other, anew: true, known: true, marked: true},
		"another directory, and alone in it":    {session: 1, dir: alone, anew: true, known: true, marked: true},
		"the czxid was unknown, and not alone":  {before: func(tab *Table) { f := found(); f.Czxid = 0; tab.Set(1, "/lock", f) }, session: 1, dir: other, anew: true, known: true, marked: true},
		"the czxid was unknown, and alone":      {before: func(tab *Table) { f := found(); f.Czxid = 0; tab.Set(1, "/lock", f) }, session: 1, dir: alone, known: true, marked: true},
		"the directory was forgotten":           {before: func(tab *Table) { tab.Forget("/lock") }, session: 1, dir: at(5, 5, 21), anew: true},
		"the session is over":                   {before: func(tab *Table) { tab.Begin(2); tab.Set(2, "/lock", found()) }, session: 1, dir: at(5, 5, 21), anew: true, known: true, marked: true},
		"its data must be left alone":           {before: func(tab *Table) { tab.LeaveData(1, g) }, session: 1, dir: at(5, 5, 21), known: true},
		"foreign data that was written over":    {before: func(tab *Table) { tab.Overwrite(1, g, found(), at(5, 4, 20)) }, session: 1, dir: at(6, 5, 21), foreign: true, known: true},
		"another kind has the path in the list": {before: func(tab *Table) { tab.Set(1, "/lock", DirState{Kind: layout.KindQueue, Mark: mark}) }, session: 1, dir: at(5, 5, 21), anew: true},
	} {
		t.Run(name, func(t *testing.T) {
			var tab Table
			tab.Begin(1)
			tab.Set(1, "/lock", found())
			if c.before != nil {
				c.before(&tab)
			}
			// The number of a node is the number of earlier creations.
			seq := int64(c.dir.Cversion+c.dir.NumChildren)/2 - 1
			if c.dir.Czxid == 8 {
				seq = int64(c.dir.Version) - 1
			}
			_, anew, foreign := tab.Wrote(c.session, g, seq, c.dir)
			if anew != c.anew || foreign != c.foreign {
				t.Errorf("anew %t, foreign %t, want %t, %t", anew, foreign, c.anew, c.foreign)
			}
			f, known := tab.Known(g)
			if known != c.known || known && (f.Mark != nil) != c.marked {
				t.Errorf("known %t with mark %q, want %t, %t", known, f.Mark, c.known, c.marked)
			}
		})
	}
	for name, record := range map[string]func(tab *Table){
		"what an earlier session found is not recorded":                func(tab *Table) { tab.Set(1, "/lock", found()) },
		"foreign data that an earlier session read is not recorded":    func(tab *Table) { tab.Overwrite(1, g, found(), at(5, 4, 20)) },
		"data that an earlier session may not write is not left alone": func(tab *Table) { tab.LeaveData(1, g) },
	} {
		t.Run(name, func(t *testing.T) {
			var tab Table
			tab.Begin(1)
			tab.Begin(2)
			record(&tab)
			if _, known := tab.Known(g); known {
				t.Error("recorded")
			}
		})
	}
	// The service was restored from a backup: another kind made the directory again, and the numbers of its
	// history are lower.
	t.Run("foreign data that an earlier session read hides no other directory", func(t *testing.T) {
		var tab Table
		tab.Begin(1)
		tab.Set(1, "/lock", found())
		tab.Begin(2)
		tab.Overwrite(1, g, found(), at(5, 4, 20))
		restored := other
		restored.Mzxid = 9
		if _, anew, _ := tab.Wrote(2, g, 4, restored); !anew {
			t.Error("the directory is not examined")
		}
	})
	t.Run("a late reply does not set the knowledge back", func(t *testing.T) {
		var tab Table
		tab.Begin(1)
		f := Found(g, at(5, 4, 21)) // read after a foreign write, with the mark
		f.Mark, f.Version = mark, backend.AnyVersion
		tab.Set(1, "/lock", f)
		tab.Wrote(1, g, 3, at(4, 4, 19)) // from before that write
		if _, _, foreign := tab.Wrote(1, g, 4, at(6, 5, 22)); foreign {
			t.Error("the next creation takes the known write for a new one")
		}
	})
	t.Run("the examination of another directory is confirmed", func(t *testing.T) {
		var tab Table
		tab.Begin(1)
		tab.Set(1, "/lock", found())
		now, _, _ := tab.Wrote(1, g, 4, other)
		tab.Confirm(1, g, now)
		if f, _ := tab.Known(g); f.Czxid != 8 {
			t.Errorf("czxid %d, want 8", f.Czxid)
		}
		_, anew, _ := tab.Wrote(1, g, 5, backend.Stat{Czxid: 8, Version: 6, Mzxid: 23, NumChildren: 4})
		if anew {
			t.Error("it is examined again")
		}
	})
}

func TestRemember_ForgetsOneDirectoryAtTheMaximum(t *testing.T) {
	var m map[string]int
	for i := range maxDirs + 1 {
		Remember(&m, fmt.Sprint(i), i)
	}
	if last, ok := m[fmt.Sprint(maxDirs)]; len(m) != maxDirs || !ok || last != maxDirs {
		t.Errorf("%d directories, the last one %d, %t", len(m), last, ok)
	}
}

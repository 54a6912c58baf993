package pgtest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
)

// templates are the data directories that new servers copy, since initdb takes longer than a copy. One
// exists while a server of it does.
var templates struct {
	sync.Mutex
	all map[installation]*template
}

type template struct {
	dir   string
	users int
}

// useTemplate returns a data directory to copy. The caller calls done when its server is closed.
func useTemplate(ctx context.Context, inst installation) (data string, done func(), err error) {
	templates.Lock()
	defer templates.Unlock()
	t := templates.all[inst]
	if t == nil {
		if t, err = newTemplate(ctx, inst); err != nil {
			return "", nil, err
		}
		if templates.all == nil {
			templates.all = make(map[installation]*template)
		}
		templates.all[inst] = t
	}
	t.users++
	return filepath.Join(t.dir, "data"), func() { t.giveUp(inst) }, nil
}

func newTemplate(ctx context.Context, inst installation) (*template, error) {
	dir, err := inst.tempDir("")
	if err != nil {
		return nil, err
	}
	_, err = inst.run(ctx, dir, inst.path("initdb"), "--no-sync", "-A", "trust", "-U", superuser, "-E", "UTF8", "--no-locale", "-D", filepath.Join(dir, "data"))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &template{dir: dir}, nil
}

func (t *template) giveUp(inst installation) {
	templates.Lock()
	defer templates.Unlock()
	if t.users--; t.users == 0 {
		delete(templates.all, inst)
		_ = os.RemoveAll(t.dir)
	}
}

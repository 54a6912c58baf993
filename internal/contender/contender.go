// Package contender has the common parts of every queue of contenders, whatever its rule for the next
// grant: the queue of a lock or an election (package line), of permits (package semaphore), and others.
//
//	contender.go   the data of a contender's node; a try looks before it makes one; Serves, Sees
//	number.go      the sequence numbers of a directory are limited
//	neighbour.go   the watch on another node of the queue
//	lookup.go      which client holds the lock, for an error
package contender

import (
	"context"
	"fmt"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/kinds"
	"github.com/go-coord/coord/internal/layout"
)

// Encode returns the data of a contender's node, see layout.EncodeContender. It
// refuses an ID and Data that cannot be stored.
func Encode(id string, keep time.Duration, data []byte) ([]byte, error) {
	if !utf8.ValidString(id) {
		return nil, fmt.Errorf("%w: the ID is not valid UTF-8", backend.ErrInvalid)
	}
	text, err := layout.EncodeContender(id, keep, data)
	if err != nil {
		return nil, err
	}
	if layout.IsRequest(text) {
		err = fmt.Errorf("%w: Data has the form of a request to release the lock", backend.ErrInvalid)
	}
	return text, err
}

// LookAt lists the children of dir for a try. If listing is denied, it returns no names and no error: the
// try then learns the answer from its own node.
func LookAt(ctx context.Context, s *core.Session, dir string) ([]string, error) {
	names, err := s.List(ctx, dir)
	if errs.Answers(err, backend.ErrDenied) {
		err = nil
	}
	return names, err
}

// calm is what the tries of one client have found.
type calm struct {
	mu   sync.Mutex
	dirs map[string]struct{} // see IsCalm
}

// IsCalm reports whether the latest try of the client in dir found no contender in its
// way.
func IsCalm(c *core.Client, dir string) bool {
	x := core.Kept[calm](c)
	x.mu.Lock()
	defer x.mu.Unlock()
	_, ok := x.dirs[dir]
	return ok
}

// SetCalm records whether a try of the client in dir found no contender in its way.
func SetCalm(c *core.Client, dir string, isCalm bool) {
	x := core.Kept[calm](c)
	x.mu.Lock()
	defer x.mu.Unlock()
	if !isCalm {
		delete(x.dirs, dir)
		return
	}
	kinds.Remember(&x.dirs, dir, struct{}{})
}

// Serves reports whether a hold is on the service of the client. For a hold of another
// client it looks for the node, whose name is unique.
func Serves(ctx context.Context, c *core.Client, h *core.Hold) (bool, error) {
	if h.On().Client() == c {
		return true, nil
	}
	return core.OnSession(ctx, c, func(s *core.Session) (bool, error) {
		path := h.Path()
		if err := s.Backend().Sync(ctx, path); err != nil {
			return false, err
		}
		_, err := s.Backend().Exists(ctx, path, nil)
		if errs.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
}

// Sees reports whether the node called name in dir, on which a watch was armed, exists.
// It returns an error if the node cannot be read. Arming a watch needs no permission,
// but servers from 3.8.4 on withhold the event from a session that may not read the
// node (ZOOKEEPER-4799), so the waiter would wait for ever. A session asks once for
// each directory. For nodes of other implementations, which are likely to have other
// credentials, it always asks.
func Sees(ctx context.Context, s *core.Session, dir, name string) (bool, error) {
	if layout.IsOurs(name) && s.IsAllowed(dir) {
		return true, nil
	}
	_, _, err := s.Backend().Children(ctx, dir+"/"+name, nil)
	switch {
	case errs.IsNotFound(err):
		return false, nil // deleted just now; the event may have been withheld
	case err != nil:
		return false, err
	case layout.IsOurs(name):
		s.SetAllowed(dir)
	}
	return true, nil
}

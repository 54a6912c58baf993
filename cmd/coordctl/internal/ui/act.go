package ui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/cmd/coordctl/internal/live"
)

// An act is an action that an operator has started here.
type act struct {
	At      time.Time
	What    string
	Path    string
	Outcome string
}

const mostActs = 20

// act starts an action, and shows the page of the recipe again. The action continues after the
// reply, until ctx ends: a holder may take its time.
func (s *server) act(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 1<<16)
	if origin := r.Header.Get("Origin"); origin != "" && origin != "http://"+r.Host && origin != "https://"+r.Host {
		http.Error(w, "Requests of other sites are refused.", http.StatusForbidden)
		return
	}
	switch {
	case !s.o.AllowActions:
		http.Error(w, "This server allows no actions. Start it with --allow-actions.", http.StatusForbidden)
		return
	case !s.mayAct(r), !same(r.PostFormValue("token"), s.token):
		http.Error(w, "Open the address that coordctl has printed, and act from there.", http.StatusForbidden)
		return
	}
	path := r.PostFormValue("path")
	v, _ := s.m.Snapshot()
	row := v.Find(path)
	if row == nil {
		http.Error(w, "There is no recipe at the path.", http.StatusNotFound)
		return
	}
	what := r.PostFormValue("do")
	do, text := s.action(row, what, r.PostForm)
	if do == nil {
		http.Error(w, "The recipe has no such action.", http.StatusBadRequest)
		return
	}
	s.start(ctx, act{At: time.Now(), What: text, Path: path, Outcome: "under way"}, do)
	http.Redirect(w, r, "/recipe?"+url.Values{"path": {path}}.Encode(), http.StatusSeeOther)
}

// action returns what an action does, and its name; or nil if a recipe has no such action.
func (s *server) action(row *live.Row, what string, form url.Values) (func(ctx context.Context) (string, error), string) {
	path := s.m.Rel(row.Path)
	switch {
	case what == "revoke" && (row.Recipe == "mutex" || row.Recipe == "rwmutex"):
		o := &coord.RevokeOptions{By: s.o.By, Reason: clip(form.Get("reason"), 200)}
		text := "ask the holder to release it"
		if form.Get("force") != "" {
			o.ForceAfter = forceAfter
			text += fmt.Sprintf(", and delete its node after %v", forceAfter)
		}
		return func(ctx context.Context) (string, error) {
			var err error
			if row.Recipe == "rwmutex" {
				err = coord.NewRWMutex(s.c, path, nil).Revoke(ctx, o)
			} else {
				err = coord.NewMutex(s.c, path, nil).Revoke(ctx, o)
			}
			if errors.Is(err, context.DeadlineExceeded) {
				return fmt.Sprintf("the holder has not released it within %v of the request", actionLimit), nil
			}
			return "the holder has released it", err
		}, text
	case what == "redrive" && row.Queue != nil:
		return func(ctx context.Context) (string, error) {
			n, err := s.queue(row).Redrive(ctx)
			return fmt.Sprintf("%d dead letters were put back", n), err
		}, "put the dead letters back into the queue"
	case what == "remove" && row.Queue != nil && form.Get("id") != "":
		id := form.Get("id")
		return func(ctx context.Context) (string, error) {
			return "removed", s.queue(row).Remove(ctx, id)
		}, "remove the item " + clip(id, 60)
	}
	return nil, ""
}

// A deadQueue is a queue of any kind, for its dead letters.
type deadQueue interface {
	Redrive(ctx context.Context, ids ...string) (int, error)
	Remove(ctx context.Context, id string) error
}

func (s *server) queue(row *live.Row) deadQueue {
	path, o := s.m.Rel(row.Path), &coord.QueueOptions[[]byte]{Codec: coord.Bytes()}
	switch row.Recipe {
	case "priorityqueue":
		return coord.NewPriorityQueue(s.c, path, o)
	case "delayqueue":
		return coord.NewDelayQueue(s.c, path, o)
	}
	return coord.NewQueue(s.c, path, o)
}

// start runs an action, which Serve waits for.
func (s *server) start(ctx context.Context, a act, do func(ctx context.Context) (string, error)) {
	s.mu.Lock()
	s.acts = append(s.acts, a)
	s.acts = s.acts[max(0, len(s.acts)-mostActs):]
	s.mu.Unlock()
	s.acting.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, actionLimit)
		defer cancel()
		outcome, err := do(ctx)
		if err != nil {
			outcome = "failed: " + err.Error()
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for i := range s.acts {
			if s.acts[i] == a {
				s.acts[i].Outcome = outcome
			}
		}
	})
}

// actsOf returns the actions on a path, the latest first.
func (s *server) actsOf(path string) []act {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []act
	for _, a := range slices.Backward(s.acts) {
		if a.Path == path {
			list = append(list, a)
		}
	}
	return list
}

// clip returns the beginning of a text.
func clip(text string, most int) string {
	for i := range text {
		if i > most {
			return text[:i]
		}
	}
	return text
}

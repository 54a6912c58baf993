package recipetest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// listsGroup matches a listing of the group at /g.
func listsGroup(c backendtest.Call) bool {
	return c.Op == "children" && strings.HasSuffix(c.Path, "/g")
}

// removes matches the removal of one node. The commits with which a newcomer settles in have a
// check as well.
func removes(c backendtest.Call) bool {
	return c.Op == "commit" && len(c.Ops) == 1 && c.Ops[0].Kind == backend.OpDelete
}

// nodesOf returns the names of the nodes that members with the id have in the group at /g.
func (w *world) nodesOf(id string) []string {
	w.T.Helper()
	return slices.DeleteFunc(w.Children("/g"), func(name string) bool { return !strings.Contains(name, "-member-"+id+"-") })
}

// groupGiveupTests are tests of Group on each service.
type groupGiveupTests struct{ Services }

// A Join that is given up after its node was made has left nothing when it returns, however long
// the removal takes. So the next Join is not refused, also by another Group of the same client.
func (on groupGiveupTests) AJoinThatWasGivenUpHasLeftNothing(t *testing.T) {
	for what, match := range map[string]func(backendtest.Call) bool{
		"list":       listsGroup,
		"withdrawal": func(c backendtest.Call) bool { return coordtest.Deletes(c) && !removes(c) },
	} {
		t.Run(what, func(t *testing.T) {
			on.each(t, func(w *world) {
				b := w.group("b", nil)
				mustJoin(w.T, b, "other", "1") // a member that is alone does not list
				if what == "withdrawal" {
					mustJoin(w.T, b, "x", "1")
				}
				present := w.nodesOf("x")
				var before coordtest.Nth
				c := w.Open("a", &backendtest.Hooks{Before: func(ctx context.Context, c backendtest.Call) error {
					if removes(c) {
						time.Sleep(50 * time.Millisecond) // a slow service
					}
					return before.Before(ctx, c)
				}})
				for i := range 3 {
					ctx, cancel := context.WithCancelCause(context.Background())
					before.Arm(1, match, func(ctx context.Context, c backendtest.Call, _ error) error {
						cancel([]error{nil, coord.ErrDuplicate, coord.ErrDeleted}[i]) // the cause is the caller's affair
						if c.Op == "commit" {
							return backend.Uncertain(backend.ContextError(ctx))
						}
						return backend.ContextError(ctx)
					})
					began := time.Now()
					_, err := textGroup(c, false).Join(ctx, "x", "2")
					coordtest.WantErr(w.T, err, context.Canceled)
					if busy(w, began) {
						continue
					}
					if names := w.nodesOf("x"); !slices.Equal(names, present) {
						w.T.Errorf("the node is left: %v, before %v", names, present)
					}
					if what == "withdrawal" {
						continue
					}
					mustLeave(w.T, mustJoin(w.T, textGroup(c, false), "x", "3"))
				}
			})
		})
	}
}

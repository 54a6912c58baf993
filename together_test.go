package coord

import (
	"sync/atomic"
	"testing"
)

func TestWhatIsDoneTogetherPanicsInTheCaller(t *testing.T) {
	t.Parallel()
	var done atomic.Int32
	defer func() {
		if p := recover(); p != "two" || done.Load() != 4 {
			t.Errorf("recovered %v after %d calls, want two after the other 4", p, done.Load())
		}
	}()
	together(5, func(i int) {
		if i == 2 {
			panic("two")
		}
		done.Add(1)
	})
	t.Error("no panic")
}

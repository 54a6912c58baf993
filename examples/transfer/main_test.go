package main

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/go-coord/coord/examples/internal/exampletest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMoneyIsNeitherLostNorMade(t *testing.T) {
	exampletest.Tells(t, "transfer", story,
		`at first: ann has 100, bob has 20`,
		`office +t-1, 30 from ann to bob, is committed`,
		`now: ann has 70, bob has 50`,
		`office +t-2, 500 from ann to bob, is aborted by site ann: 70 is not enough for 500`,
		`now: ann has 70, bob has 50`,
		`office +t-3, 25 from ann to bob, is committed`,
		`bob +has voted yes, and is killed before he books`,
		`now: ann has 45, bob has 50, and 25 are on the way`,
		`bob +is started again`,
		`now: ann has 45, bob has 75`,
		`office +t-4, 75 from bob to ann, is committed`,
		`now: ann has 120, bob has 0`,
		`office +another one is killed while it proposes t-5`,
		`office +t-5, 20 from ann to bob, is committed`,
		`now: ann has 100, bob has 20`,
	)
}

func TestAnAccountBooksOnceHoweverOftenItIsTold(t *testing.T) {
	a := &account{balance: 10, pending: make(map[int64]int)}
	for range 2 {
		if err := a.prepare(1, -7); err != nil {
			t.Fatal(err)
		}
		if err := a.prepare(2, 5); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.prepare(3, -4); err == nil {
		t.Error("7 of 10 are set aside, and 4 can still be spent")
	}
	for range 2 {
		a.commit(1)
		a.commit(2)
		a.abort(3)
	}
	if got, pending := a.read(); got != 8 || pending != 0 {
		t.Errorf("%d and %d pending, want 8", got, pending)
	}
	for range 2 {
		if err := a.prepare(4, -8); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		a.abort(4)
	}
	if got, pending := a.read(); got != 8 || pending != 0 {
		t.Errorf("after an abort %d and %d pending, want 8", got, pending)
	}
}

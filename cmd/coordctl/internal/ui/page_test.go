package ui

import (
	"slices"
	"testing"

	"github.com/go-coord/coord/cmd/coordctl/internal/live"
)

// TestTransactionsInDoubtHaveATile: as top has a figure for them.
func TestTransactionsInDoubtHaveATile(t *testing.T) {
	doubt := func(list []tile) int {
		return slices.IndexFunc(list, func(x tile) bool { return x.Words == "in doubt" })
	}
	if i := doubt(tiles(live.Totals{})); i >= 0 {
		t.Error("a tile without transactions in doubt")
	}
	list := tiles(live.Totals{InDoubt: 2})
	if i := doubt(list); i < 0 || list[i].Figure != "2" || !list[i].Bad {
		t.Errorf("the tiles are %+v", list)
	}
}

package election

import (
	"bytes"
	"strings"
	"testing"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// A candidate is read as it was written. Whatever the data of its node is, it can be read.
func FuzzCandidates(f *testing.F) {
	for _, data := range []string{
		"", "unlock", `{"coord-revoke":{"by":"x","at":9223372036854775807},"data":"AAE="}`, `{"coord-candidate":{"id":"a","data":"AA=="}}`,
		`{"coord-candidate":null}`, `{"coord-candidate":{"id":{}}}`, "\xff\xfe",
	} {
		f.Add([]byte(data), "id")
	}
	f.Fuzz(func(t *testing.T, data []byte, id string) {
		const path = "/e/x-latch-0000000000"
		own := layout.Candidate{ID: strings.ToValidUTF8(id, "?"), Data: data}
		text, err := own.Encode()
		if err != nil {
			t.Fatal(err)
		}
		x := newCandidate(path, text, backend.Stat{})
		if x.ID != own.ID || !bytes.Equal(x.Data, data) {
			t.Errorf("%q, %q came back as %q, %q", own.ID, data, x.ID, x.Data)
		}
		if x := newCandidate(path, data, backend.Stat{Czxid: 7}); x.Path != path || x.Token != 7 || x.Ready {
			t.Errorf("%q was read as %+v", data, x)
		}
	})
}

package jute

import "testing"

func TestADecoderReadsValuesAndThenZeros(t *testing.T) {
	d := Decoder{Rest: []byte("\x00\x00\x00\x07" + "\xff\xff\xff\xff\xff\xff\xff\xfe" + "\x01" + "\x00\x00\x00\x03abc" + "\xff\xff\xff\xff" +
		"\x00\x00\x00\x01" + "\x00\x00\x00\x1f\x00\x00\x00\x05world\x00\x00\x00\x06anyone" + "rest")}
	if n := d.Int32(); n != 7 {
		t.Error(n)
	}
	if n := d.Int64(); n != -2 {
		t.Error(n)
	}
	if !d.Bool() {
		t.Error("false")
	}
	if s := d.Text(); s != "abc" {
		t.Error(s)
	}
	if b := d.Bytes(); b != nil || d.Failed {
		t.Error("null:", b, d.Failed)
	}
	d.SkipACL()
	if string(d.Rest) != "rest" || d.Failed {
		t.Errorf("%q, %v", d.Rest, d.Failed)
	}
	if n := d.Int64(); n != 0 || !d.Failed {
		t.Error("8 bytes of 4:", n, d.Failed)
	}
	if b := d.Take(1); b != nil {
		t.Error("after the failure:", b)
	}
}

func TestALengthThatCannotBeFails(t *testing.T) {
	for _, head := range []string{"\xff\xff\xff\xfe", "\x00\x00\x00\x05", "\x7f\xff\xff\xff"} {
		d := Decoder{Rest: []byte(head + "abcd")}
		if b := d.Bytes(); b != nil || !d.Failed {
			t.Errorf("%x: %q, %v", head, b, d.Failed)
		}
		d = Decoder{Rest: []byte(head + "abcd")}
		if d.SkipACL(); head[0] == 0 && !d.Failed {
			t.Errorf("%x entries in 4 bytes", head)
		}
	}
}

// An append to a value does not overwrite the bytes after it.
func TestAValueEndsWhereItEnds(t *testing.T) {
	d := Decoder{Rest: []byte("abcd")}
	if b := append(d.Take(2), 'x'); string(b) != "abx" || string(d.Rest) != "cd" {
		t.Errorf("%q, %q", b, d.Rest)
	}
}

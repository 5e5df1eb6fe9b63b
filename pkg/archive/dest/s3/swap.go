package s3

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/tributary-dev/tributary/pkg/archive/dest"
)

// Swap is a conditional write.
func (d *Dest) Swap(ctx context.Context, key string, old dest.Tag, data []byte) (dest.Tag, error) {
	tag, err := d.swap(ctx, key, old, data)
	if err != nil {
		return "", d.fail("swap", key, err)
	}
	return tag, nil
}

func (d *Dest) swap(ctx context.Context, key string, old dest.Tag, data []byte) (dest.Tag, error) {
	if len(data) > dest.MaxSmall {
		return "", dest.ErrTooLarge
	}
	object, err := d.object(key)
	if err != nil {
		return "", err
	}
	if d.c.SingleWriter {
		tag, done, err := d.compare(ctx, key, old, data)
		if err != nil || done {
			return tag, err
		}
		return d.put(ctx, object, data, nil, nil)
	}
	var match, noneMatch *string
	if old == "" {
		noneMatch = aws.String("*")
	} else {
		match = aws.String(string(old))
	}
	tag, err := d.put(ctx, object, data, match, noneMatch)
	if err == nil || !refused(err) {
		return tag, err
	}
	// The answer to an earlier attempt may have been lost, of this call or of another.
	tag, done, cerr := d.compare(ctx, key, "none", data)
	switch {
	case done:
		return tag, nil
	case errors.Is(cerr, dest.ErrConflict):
		return "", dest.ErrConflict
	}
	return "", cerr
}

// compare reads what is stored. It is an error if that is not as old says, unless it
// is data: then the swap is done.
func (d *Dest) compare(ctx context.Context, key string, old dest.Tag, data []byte) (tag dest.Tag, done bool, err error) {
	now, tag, err := d.read(ctx, key, "")
	switch {
	case err == nil && bytes.Equal(now, data):
		return tag, true, nil
	case err == nil && tag == old, errors.Is(d.because(err), dest.ErrNotExist) && old == "":
		return "", false, nil
	case err == nil, errors.Is(d.because(err), dest.ErrNotExist):
		return "", false, dest.ErrConflict
	}
	return "", false, err
}

// refused reports whether the store has answered that the condition of a write does
// not hold. If-Match on an object that is gone is answered 404.
func refused(err error) bool {
	code, status := answer(err)
	return status == http.StatusPreconditionFailed || status == http.StatusNotFound && code != "NoSuchBucket"
}

func (d *Dest) put(ctx context.Context, object *string, data []byte, match, noneMatch *string) (dest.Tag, error) {
	in := &awss3.PutObjectInput{
		Bucket: &d.c.Bucket, Key: object, Body: bytes.NewReader(data), ContentLength: aws.Int64(int64(len(data))),
		IfMatch: match, IfNoneMatch: noneMatch,
		ChecksumCRC32C: crc32c(data), Metadata: map[string]string{checksum: checksumOf(data)},
	}
	in.ServerSideEncryption, in.SSEKMSKeyId = d.encryption()
	out, err := d.s3.PutObject(ctx, in)
	if err != nil {
		return "", err
	}
	return dest.Tag(aws.ToString(out.ETag)), nil
}

func (d *Dest) encryption() (types.ServerSideEncryption, *string) {
	if d.c.KMSKey == "" {
		return types.ServerSideEncryption(d.c.Encryption), nil
	}
	return types.ServerSideEncryption(d.c.Encryption), &d.c.KMSKey
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// crc32c is the checksum by which the store knows that a body has come whole.
func crc32c(data []byte) *string {
	var sum [4]byte
	binary.BigEndian.PutUint32(sum[:], crc32.Checksum(data, castagnoli))
	return aws.String(base64.StdEncoding.EncodeToString(sum[:]))
}

// Check writes an object of its own, over it where that must not go, and deletes it.
func (d *Dest) Check(ctx context.Context) error {
	object := aws.String(d.prefix + ".tributary/check-" + rand.Text())
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.c.Timeout)
		defer cancel()
		_, _ = d.s3.DeleteObject(ctx, &awss3.DeleteObjectInput{Bucket: &d.c.Bucket, Key: object})
	}()
	if err := d.check(ctx, object); err != nil {
		return d.fail("check", "", err)
	}
	return nil
}

func (d *Dest) check(ctx context.Context, object *string) error {
	first := []byte("Tributary checks whether it can write here: " + time.Now().UTC().Format(time.RFC3339) + "\n")
	if _, err := d.put(ctx, object, first, nil, nil); err != nil {
		return err
	}
	if d.c.SingleWriter {
		return nil
	}
	for _, try := range []struct {
		match, noneMatch *string
		header           string
	}{
		{nil, aws.String("*"), "If-None-Match"},
		{aws.String(`"0123456789abcdef0123456789abcdef"`), nil, "If-Match"},
	} {
		_, err := d.put(ctx, object, []byte("This must not be written.\n"), try.match, try.noneMatch)
		code, status := answer(err)
		switch {
		case err == nil:
			return fmt.Errorf("%w: it ignores %s, so that one of two writers would overwrite what the other has committed; "+
				"use a store that knows conditional writes, or choose single-writer mode and see to it that there is one", dest.ErrNoSwap, try.header)
		case status == http.StatusNotImplemented, status == http.StatusBadRequest:
			return fmt.Errorf("%w: it answers %s (HTTP %d) to %s; "+
				"use a store that knows conditional writes, or choose single-writer mode and see to it that there is one writer", dest.ErrNoSwap, code, status, try.header)
		case status != http.StatusPreconditionFailed:
			return err
		}
	}
	// And one whose condition holds is let through.
	out, err := d.s3.HeadObject(ctx, &awss3.HeadObjectInput{Bucket: &d.c.Bucket, Key: object})
	if err != nil {
		return err
	}
	if _, err := d.put(ctx, object, first, out.ETag, nil); err != nil && !refused(err) {
		return err
	} else if err != nil {
		return fmt.Errorf("%w: it refuses an If-Match with the very tag that it has given; use another store, or choose single-writer mode", dest.ErrNoSwap)
	}
	return nil
}

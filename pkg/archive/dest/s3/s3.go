// Package s3 keeps an archive's objects in a bucket of Amazon S3 or of a store with
// the same API.
//
// Swap is a conditional write (If-None-Match, If-Match), which Amazon's store and
// most others have. Check finds out whether this one does: a store that ignores the
// condition would let a second writer overwrite what the first has committed, and is
// refused unless SingleWriter is set.
//
// A tag is an entity tag. It only says that something has changed: a store may pair
// it with the content of a moment before or after, so small objects carry a checksum
// of their own, and artifacts do in their format.
//
// Large objects go in parts, as they come, in memory of three parts. What a killed
// process has not completed is not listed, but kept by the store until a lifecycle
// rule of the bucket (AbortIncompleteMultipartUpload) removes it.
package s3

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/tributary-dev/tributary/pkg/archive/dest"
)

// Dest is a bucket, or what is under a prefix in it.
type Dest struct {
	c      Config
	prefix string // with its slash
	page   int32  // keys in a page of a listing
	s3     *awss3.Client
}

var _ dest.Destination = (*Dest)(nil)

// Describe returns the URL of bucket and prefix.
func (d *Dest) Describe() string {
	if d.prefix == "" {
		return "s3://" + d.c.Bucket
	}
	return "s3://" + d.c.Bucket + "/" + d.prefix[:len(d.prefix)-1]
}

// maxObject is how long a key is at most in S3, in bytes.
const maxObject = 1024

// object is the store's key of a key.
func (d *Dest) object(key string) (*string, error) {
	if err := dest.CheckKey(key); err != nil {
		return nil, err
	}
	if n := len(d.prefix) + len(key); n > maxObject {
		return nil, fmt.Errorf("%w %q: with the prefix of the store it is %d bytes long, and %d is the limit of S3: use shorter prefixes", dest.ErrKey, key, n, maxObject)
	}
	return aws.String(d.prefix + key), nil
}

// Open reads from the store, and goes on where a connection breaks.
func (d *Dest) Open(ctx context.Context, key string, offset int64) (io.ReadCloser, error) {
	object, err := d.object(key)
	if err != nil {
		return nil, d.fail("open", key, err)
	}
	r := &reader{ctx: ctx, d: d, key: key, object: object, offset: offset}
	if err := r.open(); err != nil {
		return nil, d.fail("open", key, err)
	}
	return r, nil
}

type reader struct {
	ctx    context.Context
	d      *Dest
	key    string
	object *string
	offset int64   // of what is read next
	etag   *string // of the object that was opened
	body   io.ReadCloser
	breaks int // since the last byte
}

func (r *reader) open() error {
	in := &awss3.GetObjectInput{Bucket: &r.d.c.Bucket, Key: r.object, IfMatch: r.etag}
	if r.offset > 0 {
		in.Range = aws.String(fmt.Sprintf("bytes=%d-", r.offset))
	}
	out, err := r.d.s3.GetObject(r.ctx, in)
	if _, status := answer(err); status == http.StatusRequestedRangeNotSatisfiable {
		r.body = http.NoBody
		return nil
	}
	if err != nil {
		return err
	}
	r.body, r.etag = out.Body, out.ETag
	return nil
}

func (r *reader) Read(p []byte) (int, error) {
	for {
		n, err := r.body.Read(p)
		r.offset += int64(n)
		if n > 0 {
			r.breaks = 0
		}
		if err == nil || err == io.EOF {
			return n, err
		}
		if n > 0 {
			return n, nil // the error comes again, or what follows does
		}
		if r.breaks++; r.ctx.Err() != nil || r.breaks >= r.d.c.Attempts {
			return 0, r.d.fail("read", r.key, err)
		}
		r.body.Close()
		if err := r.open(); err != nil {
			r.body = http.NoBody
			if _, status := answer(err); status == http.StatusPreconditionFailed {
				err = errors.New("the object was replaced while it was read")
			}
			return 0, r.d.fail("read", r.key, err)
		}
	}
}

func (r *reader) Close() error { return r.body.Close() }

// checksum is the name under which a small object carries its own.
const checksum = "tributary-sha256"

func checksumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Read reads a small object.
func (d *Dest) Read(ctx context.Context, key string, have dest.Tag) ([]byte, dest.Tag, error) {
	data, tag, err := d.read(ctx, key, have)
	if err != nil {
		return nil, "", d.fail("read", key, err)
	}
	return data, tag, nil
}

func (d *Dest) read(ctx context.Context, key string, have dest.Tag) ([]byte, dest.Tag, error) {
	object, err := d.object(key)
	if err != nil {
		return nil, "", err
	}
	in := &awss3.GetObjectInput{Bucket: &d.c.Bucket, Key: object}
	if have != "" {
		in.IfNoneMatch = aws.String(string(have))
	}
	for attempt := 1; ; attempt++ {
		out, err := d.s3.GetObject(ctx, in)
		if err != nil {
			return nil, "", err
		}
		data, err := readAll(out.Body)
		if want := out.Metadata[checksum]; err == nil && want != "" && want != checksumOf(data) {
			err = errors.New("its content is not what was written: the checksum differs")
		}
		if err == nil {
			return data, dest.Tag(aws.ToString(out.ETag)), nil
		}
		if errors.Is(err, dest.ErrTooLarge) || ctx.Err() != nil || attempt >= d.c.Attempts {
			return nil, "", err
		}
	}
}

func readAll(body io.ReadCloser) ([]byte, error) {
	defer body.Close()
	data, err := io.ReadAll(io.LimitReader(body, dest.MaxSmall+1))
	if err == nil && len(data) > dest.MaxSmall {
		err = dest.ErrTooLarge
	}
	return data, err
}

// Stat asks for the object's head.
func (d *Dest) Stat(ctx context.Context, key string) (dest.Info, error) {
	object, err := d.object(key)
	if err != nil {
		return dest.Info{}, d.fail("stat", key, err)
	}
	out, err := d.s3.HeadObject(ctx, &awss3.HeadObjectInput{Bucket: &d.c.Bucket, Key: object})
	if err != nil {
		return dest.Info{}, d.fail("stat", key, err)
	}
	return dest.Info{Key: key, Size: aws.ToInt64(out.ContentLength), Modified: aws.ToTime(out.LastModified)}, nil
}

// List asks for a page at a time.
func (d *Dest) List(ctx context.Context, prefix string) iter.Seq2[dest.Info, error] {
	return func(yield func(dest.Info, error) bool) {
		pages := awss3.NewListObjectsV2Paginator(d.s3, &awss3.ListObjectsV2Input{Bucket: &d.c.Bucket, Prefix: aws.String(d.prefix + prefix), MaxKeys: &d.page})
		for pages.HasMorePages() {
			page, err := pages.NextPage(ctx)
			if err != nil {
				yield(dest.Info{}, d.fail("list", prefix, err))
				return
			}
			for _, o := range page.Contents {
				key := aws.ToString(o.Key)[len(d.prefix):]
				if dest.CheckKey(key) != nil {
					continue // not an archive's: the destination's own, or a folder
				}
				if !yield(dest.Info{Key: key, Size: aws.ToInt64(o.Size), Modified: aws.ToTime(o.LastModified)}, nil) {
					return
				}
			}
		}
	}
}

// Delete deletes the object.
func (d *Dest) Delete(ctx context.Context, key string) error {
	object, err := d.object(key)
	if err == nil {
		_, err = d.s3.DeleteObject(ctx, &awss3.DeleteObjectInput{Bucket: &d.c.Bucket, Key: object})
	}
	if err != nil && !errors.Is(d.because(err), dest.ErrNotExist) {
		return d.fail("delete", key, err)
	}
	return nil
}

"""Picture files are reproducible to the byte, and written whole or not at all."""

import dataclasses
from xml.dom import minidom

import pytest

import taccl
from taccl.errors import InputError


@pytest.mark.slow
@pytest.mark.parametrize("format", ["svg", "png", "pdf"])
def test_the_same_picture_is_the_same_bytes(exchange, format):
    """Picture files contain no date and no random identifier."""
    first, second = (taccl.plot.render(taccl.plot.gantt(exchange), format) for _ in range(2))
    assert first == second


@pytest.mark.slow
@pytest.mark.parametrize(("name", "begins"), [("a.svg", b"<?xml"), ("a.PNG", b"\x89PNG"), ("a.pdf", b"%PDF")])
def test_the_ending_says_the_format(exchange, tmp_path, name, begins):
    """The ending selects SVG, PNG or PDF, also in upper case."""
    taccl.plot.save(taccl.plot.gantt(exchange), tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begins)


def test_other_endings_are_refused(exchange, tmp_path):
    """The error for a picture file with another ending lists the supported endings."""
    with pytest.raises(InputError, match=r"\.svg, \.png, \.pdf"):
        taccl.plot.save(taccl.plot.gantt(exchange), tmp_path / "a.gif")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_files_are_kept(exchange, tmp_path):
    """An existing picture file is replaced only on request."""
    path = tmp_path / "a.svg"
    path.write_text("mine")
    with pytest.raises(InputError, match="exists"):
        taccl.plot.save(taccl.plot.gantt(exchange), path)
    assert path.read_text() == "mine"
    taccl.plot.save(taccl.plot.gantt(exchange), path, overwrite=True)
    assert "<svg" in path.read_text()


@pytest.mark.slow
def test_an_artist_that_becomes_an_image_is_drawn_once(exchange, monkeypatch):
    """Computing the layout does not draw an artist that becomes an image in SVG; afterwards it is visible."""
    ax = taccl.plot.gantt(exchange)
    (image, *_) = ax.collections
    image.set_rasterized(True)
    drawn, draw = [], type(image).draw

    def counted(artist, renderer):
        drawn.extend([artist] * artist.get_visible())
        draw(artist, renderer)

    counted._supports_rasterization = True
    monkeypatch.setattr(type(image), "draw", counted)
    assert b"<image " in taccl.plot.render(ax)
    assert drawn.count(image) == 1 and image.get_visible()


@pytest.mark.slow
def test_subfigures_are_rendered_with_the_whole_figure(exchange):
    """Axes of a subfigure are rendered with the whole figure."""
    from matplotlib.figure import Figure

    parts = Figure().subfigures(1, 2)
    ax = taccl.plot.gantt(exchange, ax=parts[0].subplots())
    assert taccl.plot.render(ax, "png").startswith(b"\x89PNG")


@pytest.mark.slow
def test_nothing_is_left_open(exchange):
    """After a picture is written to a file, pyplot keeps no figure open."""
    from matplotlib import pyplot

    from taccl.plot.style import figure

    taccl.plot.render(taccl.plot.gantt(exchange, ax=figure()))
    assert pyplot.get_fignums() == []


@pytest.mark.slow
def test_names_that_no_xml_holds(exchange):
    """Control characters and lone surrogates in names are replaced, so that the SVG is valid XML."""
    name = "bell \x07 half \ud800 none \ufffe"
    links = tuple(link._replace(name=name) for link in exchange.problem.topology.links)
    topology = dataclasses.replace(exchange.problem.topology, name=name, links=links)
    problem = dataclasses.replace(exchange.problem, topology=topology)
    schedule = dataclasses.replace(exchange, problem=problem)
    for picture in (taccl.plot.gantt(schedule), taccl.plot.topology(topology)):
        minidom.parseString(taccl.plot.render(picture, "svg"))
    assert name not in taccl.report(schedule, time_limit_s=1e-9)


def test_links_with_an_underscore_are_in_the_key(exchange):
    """Links whose names begin with an underscore are in the legend, although matplotlib omits such labels."""
    links = tuple(link._replace(name="_x") for link in exchange.problem.topology.links)
    topology = dataclasses.replace(exchange.problem.topology, links=links)
    key = taccl.plot.topology(topology).get_legend()
    assert [text.get_text().strip()[:2] for text in key.get_texts()] == ["_x"]
